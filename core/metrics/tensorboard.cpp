// TensorBoard event files. A record is: length (u64), masked CRC-32C of those 8 bytes (u32), an `Event` message in
// protocol buffer encoding, masked CRC-32C of the message; all little-endian (TFRecord). The messages are encoded by
// hand: Event {1: double wall_time, 2: int64 step, 3: string file_version, 5: Summary, 7: SessionLog},
// Summary {1: repeated Value {1: string tag, 2: float simple_value}}, SessionLog {1: status, START = 1}.
#include "core/error.h"
#include "core/metrics/append_file.h"
#include "core/metrics/metrics.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <filesystem>

namespace mmt {
namespace {

namespace fs = std::filesystem;

constexpr auto kCrcTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c & 1u) != 0 ? c >> 1 ^ 0x82f63b78u : c >> 1;
    table[i] = c;
  }
  return table;
}();

template <class T> void put(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);  // the machines we run on are little-endian
  out.append(bytes, sizeof bytes);
}
static_assert(std::endian::native == std::endian::little);

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80u);
  out += static_cast<char>(value);
}

// Field number and wire type (0 varint, 1 64 bits, 2 bytes, 5 32 bits).
void put_tag(std::string& out, std::uint32_t field, std::uint32_t type) { put_varint(out, field << 3 | type); }

void put_bytes(std::string& out, std::uint32_t field, std::string_view bytes) {
  put_tag(out, field, 2);
  put_varint(out, bytes.size());
  out.append(bytes);
}

std::string event_start(std::int64_t step, double wall_time) {
  std::string event;
  put_tag(event, 1, 1);
  put(event, wall_time);
  if (step == 0) return event;  // the default is not written
  put_tag(event, 2, 0);
  put_varint(event, static_cast<std::uint64_t>(step));
  return event;
}

std::uint32_t masked(std::uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8u; }

std::string record(std::string_view message) {
  std::string out;
  put(out, static_cast<std::uint64_t>(message.size()));
  put(out, masked(crc32c(out)));
  out.append(message);
  put(out, masked(crc32c(message)));
  return out;
}

std::string event_file_name(double wall_time) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) std::strcpy(host.data(), "host");
  static std::atomic<int> counter{0};
  return fmt::format("events.out.tfevents.{:010}.{}.{}.{}", static_cast<std::int64_t>(wall_time), host.data(),
                     ::getpid(), counter++);
}

class TensorboardSink final : public Sink {
 public:
  TensorboardSink(const std::string& folder, std::optional<std::int64_t> resumed_step, std::function<double()> clock)
      : clock_(std::move(clock)), file_((fs::path(folder) / event_file_name(clock_())).string()) {
    std::string version = event_start(0, clock_());
    put_bytes(version, 3, "brain.Event:2");
    std::string head = record(version);
    if (resumed_step) {
      std::string log;
      put_tag(log, 1, 0);
      put_varint(log, 1);
      // TensorBoard drops what it has of this step and later ones.
      std::string start = event_start(*resumed_step + 1, clock_());
      put_bytes(start, 7, log);
      head += record(start);
    }
    file_.append(head);
  }

  void write(const Metrics& metrics) override { file_.append(event_record(metrics, clock_())); }

 private:
  std::function<double()> clock_;
  AppendFile file_;
};

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char c : bytes) crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xffu];
  return ~crc;
}

std::string event_record(const Metrics& metrics, double wall_time) {
  std::string summary;
  for (const auto& [name, value] : metrics.values) {
    std::string entry;
    put_bytes(entry, 1, name);
    put_tag(entry, 2, 5);
    put(entry, static_cast<float>(value));
    put_bytes(summary, 1, entry);
  }
  std::string event = event_start(metrics.step, wall_time);
  put_bytes(event, 5, summary);
  return record(event);
}

std::unique_ptr<Sink> tensorboard_sink(const std::string& folder, std::optional<std::int64_t> resumed_step,
                                       std::function<double()> clock) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw Error(fmt::format("{}: cannot make the folder: {}", folder, error.message()));
  if (!clock)
    clock = [] { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); };
  return std::make_unique<TensorboardSink>(folder, resumed_step, std::move(clock));
}

}  // namespace mmt
