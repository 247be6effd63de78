// The checkpoint folder as rank 0 sees it: names, what is complete, what may go.
#pragma once

#include "parallel/run/checkpoint.h"

namespace mmt::run {

std::string step_name(std::int64_t step);                       ///< "step_00001000"
std::optional<std::int64_t> parse_step(std::string_view name);  ///< of exactly that form

/// A complete checkpoint.
struct Complete {
  std::string name;
  std::int64_t step = 0;
  std::int64_t commit = 0;  ///< counts completed saves of the folder: what is newest, whatever its step
  std::map<std::string, double> metrics;
};

/// Opens the index and looks at the files that it lists. Throws ConfigError: newer format; Error: why it is not
/// complete.
h5::File open_index(const std::string& path);
Complete describe_checkpoint(const std::string& path);

struct Scan {
  std::vector<Complete> complete;  ///< oldest commit first
  std::vector<std::string> problems;
  std::string latest;  ///< what the file `latest` names when that is complete, else the newest; "" when there is none
};
/// Throws ConfigError when `latest` names a checkpoint of a newer format.
Scan scan_checkpoints(const std::string& folder);

/// Names of those to delete. `newest` is never among them.
std::vector<std::string> to_delete(const std::vector<Complete>& complete, const Retention& retention,
                                   const std::string& newest);

/// Removes a folder so that it is never seen half: renames it first. No error when it does not exist.
void remove_folder(const std::string& path);
/// Removes what interrupted saves and deletions left.
void remove_leftovers(const std::string& folder);
/// `from` becomes `to`, in place of what is there, in one step where the file system can.
void replace_folder(const std::string& from, const std::string& to);

}  // namespace mmt::run
