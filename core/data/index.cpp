#include "core/data/index.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "core/data/index_file.h"
#include "core/error.h"
#include "core/log.h"

namespace mmt::data {
namespace {

/// The index file, open and locked for writing, or only read.
class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  ~Store() {
    if (fd_ >= 0) ::close(fd_);
  }

  /// Returns the file's text (empty when there is none). A problem with writing is left in `problem`.
  std::string open(const std::filesystem::path& path, bool write, std::string& problem) {
    path_ = path;
    fd_ = ::open(path.c_str(), write ? O_RDWR | O_CREAT | O_CLOEXEC : O_RDONLY | O_CLOEXEC, 0644);
    writable_ = may_write_ = write && fd_ >= 0;
    if (write && fd_ < 0) {
      problem = std::strerror(errno);
      fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    }
    if (writable_ && ::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      problem = errno == EWOULDBLOCK ? "another process is writing it" : std::strerror(errno);
      writable_ = false;
    }
    std::string text;
    char buffer[1 << 16];
    for (ssize_t n = 0; fd_ >= 0 && (n = ::pread(fd_, buffer, sizeof buffer, static_cast<off_t>(text.size()))) != 0;) {
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) break;
      text.append(buffer, static_cast<std::size_t>(n));
    }
    return text;
  }
  bool writable() const { return writable_; }
  bool may_write() const { return may_write_; }

  /// Keeps the first `bytes` and puts what is appended behind them.
  void cut(std::size_t bytes) {
    if (!writable_) return;
    at_ = static_cast<off_t>(bytes);
    if (::ftruncate(fd_, at_) != 0) fail();
  }
  void append(std::string_view text) {
    while (writable_ && !text.empty()) {
      const ssize_t n = ::pwrite(fd_, text.data(), text.size(), at_);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return fail();
      at_ += n;
      text.remove_prefix(static_cast<std::size_t>(n));
    }
  }

 private:
  void fail() {  // a full disk costs the file, not the run
    log::warning("index {}: {}; the index stays in memory", path_.string(), std::strerror(errno));
    writable_ = false;
  }
  std::filesystem::path path_;
  int fd_ = -1;
  bool writable_ = false, may_write_ = false;
  off_t at_ = 0;
};

std::uint64_t combine(std::initializer_list<std::uint64_t> values) {
  return XXH3_64bits(values.begin(), values.size() * sizeof(std::uint64_t));
}

std::uint64_t text_hash(const std::string& text) { return XXH3_64bits(text.data(), text.size()); }

}  // namespace

struct DatasetIndex::Impl {
  SetSpec spec;
  std::unique_ptr<const RecordSource> records;
  IndexTable table;
  std::vector<std::int64_t> usable;
  std::filesystem::path path;
  std::uint64_t key = 0, digest = 0;
  std::int64_t reused = 0;

  Prepared prepare_sample(std::int64_t sample, const Preparation& preparation) const {
    const Record record = records->read(sample);
    return prepare(preparation, record, with_id(records->where(sample), record.id));
  }
  void index_sample(std::int64_t sample, const Preparation& preparation, IndexTable& into) const {
    const std::int64_t offset = records->offset(sample);
    try {
      into.add(offset, prepare_sample(sample, preparation));
    } catch (const DataError& e) {
      into.add(offset, e.fault());
    }
  }
  void read(std::string_view file, const Preparation& preparation, const IndexOptions& options, Store& store);
  void build(const Preparation& preparation, const IndexOptions& options, Store& store);
  void take(const IndexTable& chunk, std::uint64_t payload_hash) {
    table.append(chunk);
    digest = combine({digest, payload_hash});
  }
  bool changed(const IndexTable& chunk, std::int64_t first, const Preparation& preparation) const;
};

/// Whether a sample that could not be used has another outcome now.
bool DatasetIndex::Impl::changed(const IndexTable& chunk, std::int64_t first, const Preparation& preparation) const {
  for (std::int64_t i = 0; i < chunk.size(); ++i) {
    const auto fault = chunk.entry(i).fault;
    if (!fault) continue;
    IndexTable now;
    index_sample(first + i, preparation, now);
    if (now.entry(0).fault != fault) return true;
  }
  return false;
}

void DatasetIndex::Impl::read(std::string_view file, const Preparation& preparation, const IndexOptions& options,
                              Store& store) {
  std::size_t at = 0;
  if (index_header_fits(file, key, records->size())) {
    at = kIndexHeaderBytes;
    while (table.size() < records->size() && (options.stop == nullptr || !*options.stop)) {
      std::size_t next = at;
      std::uint64_t payload_hash = 0;
      const auto chunk =
          read_index_chunk(file, next, table.size(), *records, preparation.encoders.size(), payload_hash);
      if (!chunk || (options.recheck && changed(*chunk, table.size(), preparation))) break;
      take(*chunk, payload_hash);
      at = next;
    }
  }
  reused = table.size();
  if (at == 0) {
    store.cut(0);
    store.append(index_header(key, records->size()));
  } else if (at < file.size()) {
    store.cut(at);
  } else {
    store.cut(file.size());
  }
}

void DatasetIndex::Impl::build(const Preparation& preparation, const IndexOptions& options, Store& store) {
  const std::int64_t first = table.size(), total = records->size();
  const std::int64_t num_chunks = (total - first + kIndexChunk - 1) / kIndexChunk;
  std::mutex mutex;
  std::condition_variable changed_state;
  std::map<std::int64_t, IndexTable> ready;  // by chunk
  std::exception_ptr error;
  std::atomic<std::int64_t> next_chunk = 0, done = first, faults = 0;
  std::atomic<bool> halt = false;
  int running = 0;

  const auto work = [&] {
    while (!halt) {
      const std::int64_t chunk = next_chunk++;
      if (chunk >= num_chunks) break;
      try {
        IndexTable piece;
        const std::int64_t begin = first + chunk * kIndexChunk, end = std::min(begin + kIndexChunk, total);
        for (std::int64_t i = begin; i < end && !halt; ++i) {
          index_sample(i, preparation, piece);
          if (piece.rows.back().fault >= 0) ++faults;
          ++done;
        }
        if (piece.size() < end - begin) break;  // stopped
        const std::lock_guard lock(mutex);
        ready.emplace(chunk, std::move(piece));
        changed_state.notify_one();
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
        halt = true;
      }
    }
    const std::lock_guard lock(mutex);
    --running;
    changed_state.notify_one();
  };

  std::vector<std::jthread> threads;
  const int num_threads =
      static_cast<int>(std::clamp<std::int64_t>(options.threads, 1, std::max<std::int64_t>(num_chunks, 1)));
  running = num_threads;
  for (int t = 0; t < num_threads; ++t) threads.emplace_back(work);

  std::int64_t written = 0;
  auto last_report = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex);
  while (running > 0 || ready.contains(written)) {
    if (!ready.contains(written)) changed_state.wait_for(lock, std::chrono::milliseconds(100));
    if (options.stop != nullptr && *options.stop) halt = true;
    while (!error && ready.contains(written)) {
      const IndexTable piece = std::move(ready.extract(written).mapped());
      lock.unlock();
      std::uint64_t payload_hash = 0;
      const std::string bytes = write_index_chunk(first + written * kIndexChunk, piece, payload_hash);
      store.append(bytes);
      take(piece, payload_hash);
      ++written;
      lock.lock();
    }
    if (error) {
      halt = true;
      ready.clear();
    }
    const auto now = std::chrono::steady_clock::now();
    if (options.progress && now - last_report >= std::chrono::milliseconds(200)) {
      last_report = now;
      lock.unlock();
      options.progress({done, total, faults});
      lock.lock();
    }
  }
  lock.unlock();
  threads.clear();
  if (error) std::rethrow_exception(error);
}

DatasetIndex DatasetIndex::build(const SetSpec& spec, const Preparation& preparation, const IndexOptions& options) {
  MMT_CHECK(preparation.tokenizer != nullptr && preparation.chat != nullptr,
            "a preparation without tokenizer or template");
  auto impl = std::make_unique<Impl>();
  impl->spec = spec;
  if (impl->spec.name.empty()) impl->spec.name = spec.path.filename().string();
  OpenOptions open;
  open.threads = options.threads;
  open.stop = options.stop;
  open.write = options.write;
  if (options.progress) open.progress = [&](std::int64_t found) { options.progress({0, found, 0}); };
  impl->records = open_records(spec, open);
  const RecordSource& records = *impl->records;
  if (!records.whole()) return DatasetIndex(std::move(impl));  // stopped: what an earlier build left stays as it is
  const std::uint64_t settings =
      combine({preparation.key(), text_hash((spec.media_root / "").lexically_normal().string())});
  impl->key = combine({settings, records.stamp()});
  const auto [folder, name] = beside_data(spec);
  impl->path = folder / fmt::format("{}.{:016x}.mmtindex", name, settings);
  if (!spec.index_folder.empty() && options.write) {
    std::error_code failed;
    std::filesystem::create_directories(folder, failed);
  }
  Store store;
  std::string problem;
  const std::string text = store.open(impl->path, options.write, problem);
  if (options.write && !store.writable()) {
    if (!spec.index_folder.empty() && !store.may_write()) {
      throw ConfigError(fmt::format("index folder {}: {}", folder.string(), problem));
    }
    log::warning("index {}: {}; it is built in memory and not kept", impl->path.string(), problem);
  }
  impl->read(text, preparation, options, store);
  if (impl->table.size() < records.size()) impl->build(preparation, options, store);
  for (std::int64_t i = 0; i < impl->table.size(); ++i) {
    if (impl->table.rows[static_cast<std::size_t>(i)].fault < 0) impl->usable.push_back(i);
  }
  if (options.progress) {
    const std::int64_t known = impl->table.size();
    options.progress({known, records.size(), known - static_cast<std::int64_t>(impl->usable.size())});
  }
  return DatasetIndex(std::move(impl));
}

DatasetIndex::DatasetIndex(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DatasetIndex::~DatasetIndex() = default;
DatasetIndex::DatasetIndex(DatasetIndex&&) noexcept = default;
DatasetIndex& DatasetIndex::operator=(DatasetIndex&&) noexcept = default;

const SetSpec& DatasetIndex::spec() const { return impl_->spec; }
const RecordSource& DatasetIndex::records() const { return *impl_->records; }
std::int64_t DatasetIndex::size() const { return impl_->records->size(); }
std::int64_t DatasetIndex::indexed() const { return impl_->table.size(); }
std::int64_t DatasetIndex::reused() const { return impl_->reused; }
const std::vector<std::int64_t>& DatasetIndex::usable() const { return impl_->usable; }
const std::filesystem::path& DatasetIndex::index_path() const { return impl_->path; }
std::uint64_t DatasetIndex::key() const { return impl_->key; }
std::uint64_t DatasetIndex::digest() const { return impl_->digest; }

IndexEntry DatasetIndex::entry(std::int64_t sample) const {
  MMT_CHECK(sample >= 0 && sample < indexed(), "sample {} of {} indexed", sample, indexed());
  return impl_->table.entry(sample);
}

std::string DatasetIndex::explain(std::int64_t sample, const Preparation& preparation) const {
  try {
    impl_->prepare_sample(sample, preparation);
    return {};
  } catch (const Error& e) {
    return e.what();
  }
}

std::vector<std::int64_t> DatasetIndex::faults() const {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(kNumDataFaults), 0);
  for (const IndexTable::Row& row : impl_->table.rows) {
    if (row.fault >= 0) ++counts[static_cast<std::size_t>(row.fault)];
  }
  return counts;
}

}  // namespace mmt::data
