// Starts the ranks of a native test program, as threads of it or as processes.

#ifndef COCOLL_TESTS_NATIVE_LAUNCH_H_
#define COCOLL_TESTS_NATIVE_LAUNCH_H_

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <new>
#include <thread>
#include <vector>

#include "checks.h"

namespace cocoll::native_tests {

// Gives a `T` that threads and processes share.
template <class T>
T* make_shared_lobby() {
  void* shared =
      mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return new (shared) T();
}

// Calls `body(rank)` in a process for each rank; gives the status of one that failed, or 0.
template <class Body>
int run_processes(int world_size, const Body& body) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < world_size; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      start_watchdog(kWatchdogSeconds);
      body(rank);
      _exit(failure_count() == 0 ? 0 : kWrongResult);
    }
    children.push_back(child);
  }
  int status = 0;
  for (size_t left = children.size(); left > 0; --left) {
    int ended = 0;
    const pid_t which = waitpid(-1, &ended, 0);
    if (ended == 0) continue;
    fprintf(stderr, "process %d ended with status %d\n", which, ended);
    if (status == 0) status = WIFEXITED(ended) ? WEXITSTATUS(ended) : 70;
    // The others would wait for it for ever.
    for (const pid_t child : children) {
      if (child != which) kill(child, SIGKILL);
    }
  }
  return status;
}

// The same in threads.
template <class Body>
int run_threads(int world_size, const Body& body) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world_size; ++rank) ranks.emplace_back(body, rank);
  for (std::thread& rank : ranks) rank.join();
  return failure_count() == 0 ? 0 : kWrongResult;
}

}  // namespace cocoll::native_tests

#endif  // COCOLL_TESTS_NATIVE_LAUNCH_H_
