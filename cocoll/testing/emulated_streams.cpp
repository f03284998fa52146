// Streams, events and graphs of the emulated device.
//
// A stream is a thread that runs what was queued on it, in order. While it is captured, what it is
// given becomes a node of a graph instead, which depends on the stream's last one and on what the
// stream has waited for. As with CUDA, a stream that waits for an event of a capture becomes part
// of it, and all that it does then must be waited for by the stream where the capture began.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cocoll/testing/emulated_device.h"

namespace cuda = cocoll::cuda;
using namespace cocoll::emulated;

namespace {

constexpr Result kCaptureInvalidated = 901;
constexpr Result kCaptureMerge = 902;
constexpr Result kCaptureUnmatched = 903;
constexpr Result kCaptureUnjoined = 904;
constexpr Result kCaptureIsolation = 905;
constexpr Result kCaptureImplicit = 906;
constexpr Result kCapturedEvent = 907;
constexpr Result kCaptureWrongThread = 908;

constexpr int kCaptureStatusInvalidated = 2;

// Of captures and of threads: whom they keep from calls that wait or allocate.
enum CaptureMode : int { kGlobal, kThreadLocal, kRelaxed, kCaptureModes };

void delay(std::mt19937* random) {
  const unsigned drawn = static_cast<unsigned>((*random)());
  if (drawn % 4 == 0) {
    const timespec time = {0, static_cast<long>(drawn / 4 % 300) * 1000};
    nanosleep(&time, nullptr);
  } else if (drawn % 4 == 1) {
    sched_yield();
  }
}

std::mt19937 make_random(unsigned number) {
  return std::mt19937(static_cast<unsigned>(setting("COCOLL_EMULATED_SEED", 0)) * 7919u + number);
}

// ---- graphs ------------------------------------------------------------------------------------

typedef std::vector<size_t> NodeNumbers;

struct Node {
  Work work;
  NodeNumbers after;    // what the streams' order and their waits say
  NodeNumbers ordered;  // the last node of the same owner
};

typedef std::vector<Node> Nodes;

// Makes one item of a graph: its nodes in an order that its edges allow.
Item issue_graph(const std::shared_ptr<const Nodes>& nodes, unsigned number) {
  std::vector<Item> items;
  for (const Node& node : *nodes) items.push_back(node.work.issue());
  return [nodes, items, number] {
    std::mt19937 random = make_random(number);
    std::vector<size_t> awaited(nodes->size());
    std::vector<NodeNumbers> followers(nodes->size());
    NodeNumbers ready;
    for (size_t which = 0; which < nodes->size(); ++which) {
      for (const NodeNumbers* edges : {&(*nodes)[which].after, &(*nodes)[which].ordered}) {
        awaited[which] += edges->size();
        for (const size_t before : *edges) followers[before].push_back(which);
      }
      if (awaited[which] == 0) ready.push_back(which);
    }
    while (!ready.empty()) {
      std::swap(ready[random() % ready.size()], ready.back());
      const size_t which = ready.back();
      ready.pop_back();
      delay(&random);
      items[which]();
      for (const size_t follower : followers[which]) {
        if (--awaited[follower] == 0) ready.push_back(follower);
      }
    }
  };
}

struct Graph {
  std::shared_ptr<const Nodes> nodes;
};

// ---- streams -----------------------------------------------------------------------------------

struct Capture;

class StreamState : public std::enable_shared_from_this<StreamState> {
 public:
  explicit StreamState(unsigned number)
      : random_(make_random(number)), thread_([this] { work(); }) {}

  ~StreamState() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void submit(Item item) {
    const std::lock_guard<std::mutex> lock(mutex_);
    items_.push_back(std::move(item));
    ++issued_;
    changed_.notify_all();
  }

  void synchronize() {
    std::unique_lock<std::mutex> lock(mutex_);
    const uint64_t awaited = issued_;
    changed_.wait(lock, [&] { return done_ >= awaited; });
  }

  bool idle() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return done_ == issued_;
  }

  // While capturing, under the mutex of captures: where to, and what the next node depends on.
  std::shared_ptr<Capture> capture;
  NodeNumbers last;

 private:
  void work() {
    for (;;) {
      Item item;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return ends_ || !items_.empty(); });
        if (items_.empty()) return;
        item = std::move(items_.front());
        items_.pop_front();
      }
      delay(&random_);
      item();
      item = nullptr;
      const std::lock_guard<std::mutex> lock(mutex_);
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  uint64_t issued_ = 0;
  uint64_t done_ = 0;
  bool ends_ = false;
  std::mt19937 random_;
  std::thread thread_;
};

struct Streams {
  std::mutex mutex;
  // Shared with who waits for all of them while one is destroyed.
  std::map<StreamState*, std::shared_ptr<StreamState>> alive;
  unsigned made = 0;
  StreamState* usual = nullptr;  // stream 0
};

Streams& streams() {
  static Streams* made = new Streams;  // streams may outlive static destructors
  return *made;
}

StreamState* find(cuda::Stream stream) {
  Streams& all = streams();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (stream == nullptr) {
    if (all.usual == nullptr) {
      const auto made = std::make_shared<StreamState>(all.made++);
      all.usual = made.get();
      all.alive[all.usual] = made;
    }
    return all.usual;
  }
  StreamState* state = reinterpret_cast<StreamState*>(stream);
  return all.alive.count(state) != 0 ? state : nullptr;
}

// ---- captures ----------------------------------------------------------------------------------

std::atomic<uint64_t> captures_begun{0};

struct Capture {
  const uint64_t id = ++captures_begun;
  const std::thread::id thread = std::this_thread::get_id();  // where it began
  CaptureMode mode = kGlobal;
  bool is_invalidated = false;
  bool has_ended = false;
  std::vector<std::shared_ptr<StreamState>> streams;  // the one where it began is the first
  Nodes nodes;
  std::map<const void*, size_t> last_of;  // by owner

  void add(StreamState* stream, Work work) {
    Node node = {std::move(work), stream->last, {}};
    if (node.work.owner != nullptr) {
      const auto [place, is_first] = last_of.emplace(node.work.owner, nodes.size());
      if (!is_first) node.ordered.push_back(place->second);
      place->second = nodes.size();
    }
    stream->last = {nodes.size()};
    nodes.push_back(std::move(node));
  }

  void join(StreamState* stream, const std::shared_ptr<Capture>& self) {
    stream->capture = self;
    streams.push_back(stream->shared_from_this());
  }

  // Whether the stream where it began waits for everything, in the end.
  bool is_joined() const {
    std::vector<bool> seen(nodes.size());
    NodeNumbers left = streams[0]->last;
    while (!left.empty()) {
      const size_t which = left.back();
      left.pop_back();
      if (seen[which]) continue;
      seen[which] = true;
      left.insert(left.end(), nodes[which].after.begin(), nodes[which].after.end());
    }
    return std::find(seen.begin(), seen.end(), false) == seen.end();
  }

  int status() const { return is_invalidated ? kCaptureStatusInvalidated : cuda::kCaptureActive; }

  // Gives what was captured.
  Nodes end() {
    has_ended = true;
    for (const auto& stream : streams) {
      stream->capture = nullptr;
      stream->last.clear();
    }
    streams.clear();
    return std::exchange(nodes, {});
  }
};

// Of all that captures change; threads capture side by side, and may wait for each other's events.
std::mutex capture_mutex;

// Under the mutex.
std::vector<Capture*>& open_captures() {
  static std::vector<Capture*>* made = new std::vector<Capture*>;
  return *made;
}

// What a thread asks to be kept from.
thread_local CaptureMode threads_mode = kGlobal;

bool forbids(const Capture& capture) {
  if (capture.mode == kRelaxed || threads_mode == kRelaxed) return false;
  if (capture.thread == std::this_thread::get_id()) return true;
  return capture.mode == kGlobal && threads_mode == kGlobal;
}

// Under the mutex.
void invalidate(Capture* capture, const char* call) {
  if (capture->is_invalidated) return;
  capture->is_invalidated = true;
  fault(std::string(call) + " invalidates a capture");
}

int status_of(const StreamState& stream) {
  return stream.capture == nullptr ? cuda::kCaptureNone : stream.capture->status();
}

// Whether a call that waits for a stream is refused; not even threads in relaxed mode may ask for
// one that is captured.
bool capture_forbids_stream(StreamState* stream, const char* call) {
  if (capture_forbids(call)) return true;
  const std::lock_guard<std::mutex> lock(capture_mutex);
  if (stream == nullptr || stream->capture == nullptr) return false;
  invalidate(stream->capture.get(), call);
  return true;
}

struct EventState {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0;
  uint64_t completed = 0;
  // Under the mutex of captures: that which it was recorded in last, and the nodes it stands for.
  std::shared_ptr<Capture> capture;
  NodeNumbers last;
};

std::shared_ptr<EventState> find(cuda::Event event) {
  return *reinterpret_cast<std::shared_ptr<EventState>*>(event);
}

// What a wait for an event is where either side is captured; false where neither is.
bool wait_in_capture(StreamState* stream, EventState* event, Result* result) {
  const std::lock_guard<std::mutex> lock(capture_mutex);
  *result = cuda::kSuccess;
  const std::shared_ptr<Capture> capture = event->capture;
  if (capture == nullptr) {
    if (stream->capture == nullptr) return false;
    *result = kCaptureInvalidated;
    if (stream->capture->is_invalidated) return true;
    *result = fault("a capture waits for an event of outside", kCaptureIsolation);
    return true;
  }
  if (capture->is_invalidated && !capture->has_ended) {
    *result = kCaptureInvalidated;
  } else if (capture->has_ended) {
    *result = fault("a wait for an event of a capture that has ended", kCapturedEvent);
  } else if (stream == streams().usual) {
    *result = fault("stream 0 waits for an event of a capture", kCaptureImplicit);
  } else if (stream->capture != nullptr && stream->capture != capture) {
    *result = fault("a capture waits for an event of another capture", kCaptureMerge);
  } else {
    if (stream->capture == nullptr) capture->join(stream, capture);
    for (const size_t node : event->last) {
      NodeNumbers& last = stream->last;
      if (std::find(last.begin(), last.end(), node) == last.end()) last.push_back(node);
    }
  }
  return true;
}

}  // namespace

namespace cocoll::emulated {

bool capture_forbids(const char* call) {
  const std::lock_guard<std::mutex> lock(capture_mutex);
  bool is_forbidden = false;
  for (Capture* capture : open_captures()) {
    if (!forbids(*capture)) continue;
    is_forbidden = true;
    invalidate(capture, call);
  }
  return is_forbidden;
}

Result submit(cuda::Stream stream, Work work) {
  StreamState* state = find(stream);
  if (state == nullptr) return fault("work on a stream that does not exist", kInvalidHandle);
  {
    const std::lock_guard<std::mutex> lock(capture_mutex);
    if (state->capture != nullptr) {
      if (state->capture->is_invalidated) return kCaptureInvalidated;
      state->capture->add(state, std::move(work));
      return cuda::kSuccess;
    }
  }
  state->submit(work.issue());
  return cuda::kSuccess;
}

Result submit(cuda::Stream stream, Item item) {
  StreamState* state = find(stream);
  if (state == nullptr) return fault("work on a stream that does not exist", kInvalidHandle);
  {
    const std::lock_guard<std::mutex> lock(capture_mutex);
    if (state->capture != nullptr) {
      if (state->capture->is_invalidated) return kCaptureInvalidated;
      state->capture->add(state, Work{[item] { return item; }});
      return cuda::kSuccess;
    }
  }
  // Not copied: what hosts take for a launch is measured on this device.
  state->submit(std::move(item));
  return cuda::kSuccess;
}

}  // namespace cocoll::emulated

extern "C" {

// ---- the driver: streams and events ------------------------------------------------------------

Result cuCtxSynchronize() {
  if (capture_forbids(__func__)) return cuda::kCaptureUnsupported;
  std::map<StreamState*, std::shared_ptr<StreamState>> alive;
  {
    const std::lock_guard<std::mutex> lock(streams().mutex);
    alive = streams().alive;
  }
  for (const auto& [state, shared] : alive) state->synchronize();
  return cuda::kSuccess;
}

Result cuStreamCreate(cuda::Stream* stream, unsigned) {
  if (current_device() < 0) return kInvalidContext;
  Streams& all = streams();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto state = std::make_shared<StreamState>(all.made++);
  all.alive[state.get()] = state;
  *stream = reinterpret_cast<cuda::Stream>(state.get());
  return cuda::kSuccess;
}

Result cuStreamDestroy_v2(cuda::Stream stream) {
  StreamState* state = find(stream);
  if (state == nullptr || stream == nullptr) return fault("destruction of no stream");
  {
    const std::lock_guard<std::mutex> lock(capture_mutex);
    if (state->capture != nullptr) fault("destruction of a stream that is captured");
  }
  std::shared_ptr<StreamState> last;  // what was queued still runs
  {
    const std::lock_guard<std::mutex> lock(streams().mutex);
    last = streams().alive[state];
    streams().alive.erase(state);
  }
  return cuda::kSuccess;
}

Result cuStreamSynchronize(cuda::Stream stream) {
  StreamState* state = find(stream);
  if (capture_forbids_stream(state, __func__)) return cuda::kCaptureUnsupported;
  if (state == nullptr) return kInvalidHandle;
  state->synchronize();
  return cuda::kSuccess;
}

Result cuStreamQuery(cuda::Stream stream) {
  StreamState* state = find(stream);
  if (capture_forbids_stream(state, __func__)) return cuda::kCaptureUnsupported;
  if (state == nullptr) return kInvalidHandle;
  return state->idle() ? cuda::kSuccess : cuda::kNotReady;
}

Result cuStreamIsCapturing(cuda::Stream stream, int* status) {
  StreamState* state = find(stream);
  if (state == nullptr) return kInvalidHandle;
  const std::lock_guard<std::mutex> lock(capture_mutex);
  *status = status_of(*state);
  return cuda::kSuccess;
}

Result cuStreamGetCaptureInfo_v2(cuda::Stream stream, int* status, uint64_t* id, void*, void*,
                                 size_t*) {
  StreamState* state = find(stream);
  if (state == nullptr) return kInvalidHandle;
  const std::lock_guard<std::mutex> lock(capture_mutex);
  *status = status_of(*state);
  if (state->capture != nullptr && id != nullptr) *id = state->capture->id;
  return cuda::kSuccess;
}

Result cuEventCreate(cuda::Event* event, unsigned) {
  *event = reinterpret_cast<cuda::Event>(new std::shared_ptr<EventState>(new EventState));
  return cuda::kSuccess;
}

Result cuEventDestroy_v2(cuda::Event event) {
  delete reinterpret_cast<std::shared_ptr<EventState>*>(event);
  return cuda::kSuccess;
}

Result cuEventRecord(cuda::Event event, cuda::Stream stream) {
  StreamState* state = find(stream);
  if (state == nullptr) return fault("an event of a stream that does not exist", kInvalidHandle);
  const std::shared_ptr<EventState> shared = find(event);
  {
    const std::lock_guard<std::mutex> lock(capture_mutex);
    if (status_of(*state) == kCaptureStatusInvalidated) return kCaptureInvalidated;
    shared->capture = state->capture;
    shared->last = state->last;
    if (state->capture != nullptr) return cuda::kSuccess;
  }
  uint64_t mine;
  {
    const std::lock_guard<std::mutex> lock(shared->mutex);
    mine = ++shared->recorded;
  }
  return submit(stream, [shared, mine] {
    const std::lock_guard<std::mutex> lock(shared->mutex);
    if (shared->completed < mine) shared->completed = mine;
    shared->changed.notify_all();
  });
}

Result cuEventQuery(cuda::Event event) {
  if (capture_forbids(__func__)) return cuda::kCaptureUnsupported;
  const std::shared_ptr<EventState> shared = find(event);
  {
    const std::lock_guard<std::mutex> lock(capture_mutex);
    if (shared->capture != nullptr) {
      return fault("a query of an event that was recorded in a capture", kCapturedEvent);
    }
  }
  const std::lock_guard<std::mutex> lock(shared->mutex);
  return shared->completed == shared->recorded ? cuda::kSuccess : cuda::kNotReady;
}

Result cuStreamWaitEvent(cuda::Stream stream, cuda::Event event, unsigned) {
  StreamState* state = find(stream);
  if (state == nullptr) return fault("a stream that does not exist waits", kInvalidHandle);
  const std::shared_ptr<EventState> shared = find(event);
  Result result;
  if (wait_in_capture(state, shared.get(), &result)) return result;
  uint64_t awaited;
  {
    const std::lock_guard<std::mutex> lock(shared->mutex);
    awaited = shared->recorded;
  }
  return submit(stream, [shared, awaited] {
    std::unique_lock<std::mutex> lock(shared->mutex);
    shared->changed.wait(lock, [&] { return shared->completed >= awaited; });
  });
}

// ---- the driver: graphs, what a framework does around cocoll -----------------------------------

Result cuStreamBeginCapture_v2(cuda::Stream stream, int mode) {
  StreamState* state = find(stream);
  if (state == nullptr || stream == nullptr) return kInvalidValue;
  if (mode < 0 || mode >= kCaptureModes) return kInvalidValue;
  const std::lock_guard<std::mutex> lock(capture_mutex);
  if (state->capture != nullptr) return kInvalidValue;
  const auto capture = std::make_shared<Capture>();
  capture->mode = static_cast<CaptureMode>(mode);
  capture->join(state, capture);
  open_captures().push_back(capture.get());
  return cuda::kSuccess;
}

Result cuThreadExchangeStreamCaptureMode(int* mode) {
  if (*mode < 0 || *mode >= kCaptureModes) return kInvalidValue;
  *mode = std::exchange(threads_mode, static_cast<CaptureMode>(*mode));
  return cuda::kSuccess;
}

Result cuStreamEndCapture(cuda::Stream stream, Graph** graph) {
  *graph = nullptr;
  StreamState* state = find(stream);
  if (state == nullptr) return kInvalidValue;
  const std::lock_guard<std::mutex> lock(capture_mutex);
  const std::shared_ptr<Capture> capture = state->capture;
  if (capture == nullptr) return kInvalidValue;
  if (capture->streams[0].get() != state) {
    return fault("a capture was ended on a stream where it did not begin", kCaptureUnmatched);
  }
  if (capture->mode != kRelaxed && capture->thread != std::this_thread::get_id()) {
    return fault("a capture was ended by a thread that did not begin it", kCaptureWrongThread);
  }
  const bool is_joined = capture->is_joined();
  std::vector<Capture*>& all = open_captures();
  all.erase(std::find(all.begin(), all.end(), capture.get()));
  Nodes nodes = capture->end();
  if (capture->is_invalidated) return kCaptureInvalidated;
  if (!is_joined) {
    return fault("a capture was ended before it waited for all its streams", kCaptureUnjoined);
  }
  *graph = new Graph{std::make_shared<const Nodes>(std::move(nodes))};
  return cuda::kSuccess;
}

Result cuGraphInstantiateWithFlags(Graph** executable, Graph* graph, unsigned long long) {
  if (capture_forbids(__func__)) return cuda::kCaptureUnsupported;
  *executable = new Graph(*graph);
  return cuda::kSuccess;
}

Result cuGraphExecDestroy(Graph* executable) {
  delete executable;
  return cuda::kSuccess;
}

// One item: what is queued behind it waits for all of it.
Result cuGraphLaunch(Graph* graph, cuda::Stream stream) {
  static std::atomic<unsigned> launched{0};
  const std::shared_ptr<const Nodes> nodes = graph->nodes;
  return submit(stream, Work{[nodes] { return issue_graph(nodes, ++launched); }});
}

Result cuGraphDestroy(Graph* graph) {
  delete graph;
  return cuda::kSuccess;
}

}  // extern "C"
