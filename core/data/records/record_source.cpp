#include "core/data/records/record_source.h"

#include <algorithm>

#include "core/data/records/record_file.h"
#include "core/data/records/tar_set.h"
#include "core/error.h"

namespace mmt::data {

std::unique_ptr<const RecordSource> open_records(const SetSpec& spec, const OpenOptions& options) {
  if (spec.format == SetFormat::webdataset) return TarSet::open(spec, options);
  return std::make_unique<RecordFile>(RecordFile::open(spec.path, spec.media_root));
}

BesideData beside_data(const SetSpec& spec) {
  // A trailing slash names the same folder; a pattern lies where its folder is a real one.
  std::filesystem::path path = spec.path.lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  std::string name = path.filename().string();
  std::filesystem::path folder = path.parent_path();
  while (spec.format == SetFormat::webdataset && folder.string().find('{') != std::string::npos) {
    name = folder.filename().string() + "_" + name;
    folder = folder.parent_path();
  }
  return {spec.index_folder.empty() ? folder : spec.index_folder, name};
}

}  // namespace mmt::data
