// Reads what export_plans.py wrote.

#ifndef COCOLL_TESTS_NATIVE_PLANS_H_
#define COCOLL_TESTS_NATIVE_PLANS_H_

#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "world.h"

// The type has the symbol's name, which therefore has another name in C++.
extern "C" const cocoll_kernel_table linked_kernel_table __asm__("cocoll_kernel_table");

namespace cocoll::native_tests {

// A line of plans.txt; the fields are those of export_plans.Case.
struct Case {
  int32_t world_size;
  std::string name;
  std::string kind;
  std::string placement;
  std::string kernel;
  std::string hosts;  // of every rank, or "-": all are on one
  bool mapped;
  bool staged;
  int64_t chunk_elements;
  int64_t limit_elements;
  int64_t alignment_elements;
  int32_t root;
  bool replicated;
  bool zero_source;
  std::vector<double> scalars;

  std::vector<int32_t> host_of_ranks() const {
    std::vector<int32_t> found;
    std::istringstream words(hosts);
    for (std::string word; std::getline(words, word, ',');) found.push_back(std::stoi(word));
    return found;
  }

  int64_t block_elements(int64_t count) const {
    const int64_t per_rank = (count + world_size - 1) / world_size;
    return (per_rank + alignment_elements - 1) / alignment_elements * alignment_elements;
  }
};

inline std::vector<Case> read_cases(const std::string& directory, int32_t world_size,
                                    bool several_hosts = false) {
  std::ifstream file(directory + "/plans.txt");
  if (!file) leave("no plans.txt in the folder of plans", kBadUsage);
  std::vector<Case> cases;
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    Case found{};
    size_t scalars = 0;
    line >> found.world_size >> found.name >> found.kind >> found.placement >> found.kernel >>
        found.hosts >> found.mapped >> found.staged >> found.chunk_elements >>
        found.limit_elements >> found.alignment_elements >> found.root >> found.replicated >>
        found.zero_source >> scalars;
    found.scalars.resize(scalars);
    for (double& scalar : found.scalars) line >> scalar;
    if (!line) leave("a line of plans.txt is not one", kBadUsage);
    if (found.world_size == world_size && (found.hosts != "-") == several_hosts)
      cases.push_back(std::move(found));
  }
  return cases;
}

inline const Case& find_case(const std::vector<Case>& cases, const std::string& name) {
  for (const Case& each : cases)
    if (each.name == name) return each;
  leave(("no case " + name).c_str(), kBadUsage);
}

inline const cocoll_kernel_entry* find_kernel(const std::string& name) {
  for (int32_t index = 0; index < linked_kernel_table.entry_count; ++index)
    if (name == linked_kernel_table.entries[index].name) return &linked_kernel_table.entries[index];
  leave(("no kernel " + name).c_str(), kBadUsage);
}

inline std::vector<host::Record> read_records(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) leave(("no plan " + path).c_str(), kBadUsage);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<host::Record> records(bytes.size() / sizeof(host::Record));
  memcpy(static_cast<void*>(records.data()), bytes.data(), records.size() * sizeof(host::Record));
  return records;
}

inline void load_image(host::PlanImage* image, const std::string& path,
                       const host::PlanLimits& limits) {
  const std::vector<host::Record> records = read_records(path);
  if (!image->load(records.data(), records.size(), limits))
    leave((path + ": " + image->error()).c_str(), kBadUsage);
}

// One rank's programs, by the names of their cases.
class Programs {
 public:
  Programs(const std::string& directory, const std::vector<Case>& cases,
           const host::Session& session) {
    for (const Case& each : cases) {
      auto program = std::make_shared<host::Program>();
      const std::string stem =
          directory + "/" + each.name + "-" + std::to_string(each.world_size) + ".";
      const std::string rank = "." + std::to_string(session.endpoint.rank);
      if (each.mapped) load_image(&program->mapped, stem + "mapped" + rank, session.limits());
      if (each.staged) load_image(&program->staged, stem + "staged" + rank, session.limits());
      program->has_mapped = each.mapped;
      program->has_staged = each.staged;
      if (each.kernel != "-") {
        const cocoll_kernel_entry* kernel = find_kernel(each.kernel);
        program->reduce = kernel->reduce;
        program->prepare = kernel->prepare;
        program->derived_count = kernel->derived_count;
        program->partial = find_kernel("sum_float32")->reduce;
      }
      by_name_[each.name] = std::move(program);
    }
  }

  std::shared_ptr<host::Program> of(const Case& which) const { return by_name_.at(which.name); }

 private:
  std::map<std::string, std::shared_ptr<host::Program>> by_name_;
};

}  // namespace cocoll::native_tests

#endif  // COCOLL_TESTS_NATIVE_PLANS_H_
