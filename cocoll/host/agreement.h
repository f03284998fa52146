// How hosts find out that all their ranks want the same operation, before anything moves.
//
// The first rank of every host speaks for it. In round k host h tells host h + 2^k what it knows
// and hears from host h - 2^k (dissemination: Hensgen, Finkel, Manber, 1988), so after log2 of
// their number every host knows whether all agree. If they do not, they exchange what was asked
// for, so that every rank can say what each wanted.

#ifndef COCOLL_HOST_AGREEMENT_H_
#define COCOLL_HOST_AGREEMENT_H_

#include <cstring>
#include <vector>

#include "control.h"
#include "wire.h"

namespace cocoll::host {

// What one host tells another in a round.
struct AgreementLine {
  uint64_t sequence;
  uint64_t digest;
  uint32_t agrees;  // all hosts heard of so far want what the digest says
  uint32_t mapped;  // and brought arrays that their neighbours map
};

// What one rank asked for, as it travels between hosts.
struct RequestLine {
  uint64_t digest;
  int64_t count;
  uint64_t epilogue;
  int32_t root;
  uint8_t kind;
  uint8_t op;
  uint8_t dtype;
  uint8_t options;
};

class Agreement {
 public:
  // `leaders[h]` speaks for host h; `members[h]` are its ranks.
  void connect(Wire* wire, int32_t host, std::vector<int32_t> leaders,
               std::vector<std::vector<int32_t>> members) {
    wire_ = wire;
    host_ = host;
    leaders_ = std::move(leaders);
    members_ = std::move(members);
    rounds_ = 0;
    while ((size_t{1} << rounds_) < leaders_.size()) ++rounds_;
    heard_.resize(rounds_);
    told_.resize(rounds_);
    receives_.assign(rounds_, {});
    sends_.assign(rounds_, {});
  }

  bool idle() const { return !running_; }

  // `own`: the control page of this host's first rank, whose mirror takes the others' requests.
  bool begin(const AgreementLine& line, Control* own, const std::vector<Control*>& controls) {
    line_ = line;
    own_ = own;
    controls_ = &controls;
    round_ = 0;
    running_ = true;
    exchanging_ = false;
    told_round_ = 0;
    receives_.assign(rounds_, 0);
    requests_.clear();
    for (size_t round = 0; round < rounds_; ++round) {
      if (!wire_->receive(before(round), kAgreementTag, &heard_[round], sizeof(AgreementLine),
                          &receives_[round]))
        return false;
    }
    return tell();
  }

  // Looks at what has come. kDone: `line()` is the verdict of all hosts.
  Wire::Outcome advance() {
    while (!exchanging_ && round_ < rounds_) {
      const Wire::Outcome outcome = wire_->test(&receives_[round_]);
      if (outcome != Wire::Outcome::kDone) return outcome;
      const AgreementLine& theirs = heard_[round_];
      line_.agrees &=
          theirs.agrees & (theirs.digest == line_.digest) & (theirs.sequence == line_.sequence);
      line_.mapped &= theirs.mapped;
      ++round_;
      if (round_ < rounds_ && !tell()) return Wire::Outcome::kFailed;
    }
    if (!exchanging_) {
      for (size_t round = 0; round < rounds_; ++round) {
        const Wire::Outcome outcome = wire_->test(&sends_[round]);
        if (outcome != Wire::Outcome::kDone) return outcome;
        sends_[round] = 0;
      }
      if (line_.agrees) return finish();
      exchanging_ = true;
      if (!exchange()) return Wire::Outcome::kFailed;
    }
    for (WireRequest& request : requests_) {
      const Wire::Outcome outcome = wire_->test(&request);
      if (outcome != Wire::Outcome::kDone) return outcome;
      request = 0;
    }
    mirror();
    return finish();
  }

  const AgreementLine& line() const { return line_; }

  // Whom this host waits for.
  int32_t awaited() const {
    return round_ < rounds_ ? before(round_) : leaders_[(host_ + 1) % leaders_.size()];
  }

  // Gives up what is under way; false where a message may still move: what it touches stays.
  bool drop() {
    bool dropped = true;
    for (size_t round = 0; running_ && round < rounds_; ++round) {
      if (round >= round_) dropped &= wire_->cancel(&receives_[round], true);
      if (round < told_round_) dropped &= wire_->cancel(&sends_[round], false);
    }
    for (size_t index = 0; running_ && exchanging_ && index < requests_.size(); ++index)
      dropped &= wire_->cancel(&requests_[index], index % 2 == 0);
    running_ = false;
    if (!dropped) {
      new auto(std::move(heard_));
      new auto(std::move(told_));
      new auto(std::move(asked_));
    }
    return dropped;
  }

 private:
  int32_t before(size_t round) const {
    const size_t hosts = leaders_.size();
    const size_t step = (size_t{1} << round) % hosts;
    return leaders_[(static_cast<size_t>(host_) + hosts - step) % hosts];
  }

  bool tell() {
    const size_t hosts = leaders_.size();
    const int32_t peer = leaders_[(static_cast<size_t>(host_) + (size_t{1} << round_)) % hosts];
    told_[round_] = line_;
    told_round_ = round_ + 1;
    return wire_->send(peer, kAgreementTag, &told_[round_], sizeof(AgreementLine), true,
                       &sends_[round_]);
  }

  // Every host tells every other what its ranks asked for.
  bool exchange() {
    const size_t hosts = leaders_.size();
    asked_.resize(hosts);
    for (size_t host = 0; host < hosts; ++host) asked_[host].resize(members_[host].size());
    auto& mine = asked_[static_cast<size_t>(host_)];
    for (size_t index = 0; index < mine.size(); ++index) {
      const int32_t rank = members_[static_cast<size_t>(host_)][index];
      const FlightRecord& record =
          (*controls_)[static_cast<size_t>(rank)]->flight[line_.sequence % kFlightRecords];
      mine[index] = {record.digest, record.count, record.epilogue, record.root,
                     record.kind,   record.op,    record.dtype,    record.options};
    }
    requests_.clear();
    requests_.reserve(2 * hosts);
    for (size_t host = 0; host < hosts; ++host) {
      if (host == static_cast<size_t>(host_)) continue;
      const auto bytes = [&](size_t one) {
        return static_cast<int64_t>(asked_[one].size() * sizeof(RequestLine));
      };
      requests_.push_back(0);
      if (!wire_->receive(leaders_[host], kRecordsTag, asked_[host].data(), bytes(host),
                          &requests_.back()))
        return false;
      requests_.push_back(0);
      if (!wire_->send(leaders_[host], kRecordsTag, mine.data(), bytes(static_cast<size_t>(host_)),
                       true, &requests_.back()))
        return false;
    }
    return true;
  }

  void mirror() {
    for (size_t host = 0; host < asked_.size(); ++host)
      for (size_t index = 0; index < asked_[host].size(); ++index) {
        const RequestLine& asked = asked_[host][index];
        FlightRecord& record = own_->mirrored(members_[host][index], line_.sequence);
        record.sequence = line_.sequence;
        record.digest = asked.digest;
        record.count = asked.count;
        record.epilogue = asked.epilogue;
        record.root = asked.root;
        record.kind = asked.kind;
        record.op = asked.op;
        record.dtype = asked.dtype;
        record.options = asked.options;
        record.state.store(static_cast<uint8_t>(FlightState::kFailed), std::memory_order_release);
      }
  }

  Wire::Outcome finish() {
    running_ = false;
    return Wire::Outcome::kDone;
  }

  Wire* wire_ = nullptr;
  int32_t host_ = 0;
  std::vector<int32_t> leaders_;
  std::vector<std::vector<int32_t>> members_;
  size_t rounds_ = 0;
  size_t round_ = 0;
  size_t told_round_ = 0;
  bool running_ = false;
  bool exchanging_ = false;
  AgreementLine line_{};
  Control* own_ = nullptr;
  const std::vector<Control*>* controls_ = nullptr;
  std::vector<AgreementLine> heard_;
  std::vector<AgreementLine> told_;
  std::vector<WireRequest> receives_;
  std::vector<WireRequest> sends_;
  std::vector<WireRequest> requests_;
  std::vector<std::vector<RequestLine>> asked_;
};

}  // namespace cocoll::host

#endif  // COCOLL_HOST_AGREEMENT_H_
