#include "bodies.h"

#include "core/at.h"
#include "core/philox.h"
#include "parallel/comm/values.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace mmt::comm::bodies {

namespace {

template <class T> Tensor tensor(std::vector<T>& v) {
  return Tensor(v.data(), dtype_of<T>, {static_cast<std::int64_t>(v.size())});
}

// Rank r's element i, of a wide range of magnitudes, so that the order of a sum shows in its bits.
double element(int r, std::int64_t i) {
  const auto x = static_cast<std::uint64_t>(i);
  const double scale = std::ldexp(1.0, static_cast<int>(random_bits(7, static_cast<std::uint64_t>(r), 1, x) % 12));
  return scale * random_normal(7, static_cast<std::uint64_t>(r), 0, x);
}

template <class T> std::vector<T> numbers(int r, std::int64_t count, std::int64_t first = 0) {
  std::vector<T> v(usize(count));
  for (std::int64_t i = 0; i < count; ++i) v[usize(i)] = T(element(r, first + i));
  return v;
}

// The definition, one element at a time.
template <class T> T sum_in_rank_order(int ranks, std::int64_t i) {
  if constexpr (std::is_same_v<T, bf16>) {
    float acc = bf16(element(0, i));
    for (int r = 1; r < ranks; ++r) acc = acc + static_cast<float>(bf16(element(r, i)));
    return bf16(acc);
  } else {
    T acc = T(element(0, i));
    for (int r = 1; r < ranks; ++r) acc = T(acc + T(element(r, i)));
    return acc;
  }
}

template <class T> bool same(T a, T b) { return std::memcmp(&a, &b, sizeof(T)) == 0; }

// Sizes around the small path, cache lines, several staging chunks.
constexpr std::int64_t kCounts[] = {0, 1, 2, 15, 17, 1023, 1025, 7001};

template <class T> void sums(Communicator& comm) {
  for (const std::int64_t count : kCounts) {
    std::vector<T> mine = numbers<T>(comm.rank(), count);
    comm.all_reduce(tensor(mine), ReduceOp::sum);
    for (std::int64_t i = 0; i < count; ++i) {
      MMT_CHECK(same(mine[usize(i)], sum_in_rank_order<T>(comm.size(), i)), "element {} of {} {}", i, count,
                name_of(dtype_of<T>));
    }
  }
}

}  // namespace

void reductions(Communicator& comm) {
  sums<float>(comm);
  sums<double>(comm);
  sums<bf16>(comm);
  const int n = comm.size();
  for (const std::int64_t count : kCounts) {
    std::vector<std::int64_t> high(usize(count)), low(usize(count)), total(usize(count));
    for (std::int64_t i = 0; i < count; ++i) high[usize(i)] = low[usize(i)] = (i * 7 + comm.rank()) % n - 1;
    total = high;
    comm.all_reduce(tensor(high), ReduceOp::max);
    comm.all_reduce(tensor(low), ReduceOp::min);
    comm.all_reduce(tensor(total), ReduceOp::sum);
    for (std::int64_t i = 0; i < count; ++i) {
      MMT_CHECK(high[usize(i)] == n - 2 && low[usize(i)] == -1 && total[usize(i)] == n * (n - 1) / 2 - n,
                "element {}: {} {} {}", i, high[usize(i)], low[usize(i)], total[usize(i)]);
    }
  }
  // A NaN on any one rank reaches all, in a maximum and a minimum too.
  for (int bad = 0; bad < n; ++bad) {
    for (const ReduceOp op : {ReduceOp::max, ReduceOp::min, ReduceOp::sum}) {
      std::vector<float> v = {1.0f, comm.rank() == bad ? std::numeric_limits<float>::quiet_NaN() : 2.0f};
      comm.all_reduce(tensor(v), op);
      MMT_CHECK(std::isnan(v[1]) && !std::isnan(v[0]), "{} {}", v[0], v[1]);
    }
  }
  std::vector<std::uint64_t> wrap = {~0ull};
  comm.all_reduce(tensor(wrap), ReduceOp::sum);
  MMT_CHECK(wrap[0] == 0ull - static_cast<std::uint64_t>(n), "{}", wrap[0]);
}

void gathers_and_scatters(Communicator& comm) {
  const int n = comm.size();
  const int me = comm.rank();
  for (const std::int64_t count : kCounts) {
    std::vector<float> whole = numbers<float>(me, count * n);
    std::vector<float> part(usize(count));
    comm.reduce_scatter(tensor(whole), tensor(part), ReduceOp::sum);
    for (std::int64_t i = 0; i < count; ++i) {
      MMT_CHECK(same(part[usize(i)], sum_in_rank_order<float>(n, me * count + i)), "element {} of {}", i, count);
    }
    // In place: the output is this rank's part of the input, the gather's input its part of the output.
    const Tensor all = tensor(whole);
    const Tensor own = all.row_range(me * count, count);
    comm.reduce_scatter(all, own, ReduceOp::sum);
    MMT_CHECK(count == 0 || std::memcmp(own.data, part.data(), usize(own.bytes())) == 0, "in place");
    comm.all_gather(own, all);
    for (std::int64_t i = 0; i < count * n; ++i) {
      MMT_CHECK(same(whole[usize(i)], sum_in_rank_order<float>(n, i)), "element {} of {}", i, count);
    }
  }
  // Parts of their own sizes, among them empty ones.
  const auto rows_of = [](int r) { return std::int64_t{r % 3} * 2000 + r % 2; };
  std::vector<std::vector<double>> held(usize(n));
  std::vector<Tensor> parts;
  for (int r = 0; r < n; ++r) {
    held[usize(r)] = numbers<double>(me, rows_of(r), 1000 * r);
    parts.push_back(tensor(held[usize(r)]));
  }
  std::vector<double> mine(usize(rows_of(me)));
  comm.reduce_scatter_v(parts, tensor(mine), ReduceOp::sum);
  for (std::int64_t i = 0; i < rows_of(me); ++i) {
    MMT_CHECK(same(mine[usize(i)], sum_in_rank_order<double>(n, 1000 * me + i)), "element {}", i);
  }
  comm.all_gather_v(tensor(mine), parts);
  for (int r = 0; r < n; ++r) {
    for (std::int64_t i = 0; i < rows_of(r); ++i) {
      MMT_CHECK(same(held[usize(r)][usize(i)], sum_in_rank_order<double>(n, 1000 * r + i)), "part {} element {}", r, i);
    }
  }
  comm.all_gather_v({}, std::vector<Tensor>(usize(n)));
}

void broadcasts(Communicator& comm) {
  for (int root = 0; root < comm.size(); ++root) {
    for (const std::int64_t count : kCounts) {
      std::vector<float> v = numbers<float>(comm.rank(), count);
      comm.broadcast(tensor(v), root);
      MMT_CHECK(v == numbers<float>(root, count), "{} elements from {}", count, root);
    }
  }
}

void all_to_all(Communicator& comm) {
  const int n = comm.size();
  const int me = comm.rank();
  // Rank s sends to rank d: nothing, a few, or more than fits into an outbox.
  const auto rows_of = [&](int s, int d) {
    return std::int64_t{(s + 2 * d) % 3 == 0 ? 0 : (s * n + d) % 4 == 3 ? 9000 : s + d + 1};
  };
  for (int round = 0; round < 2; ++round) {
    std::vector<std::vector<float>> out(usize(n)), in(usize(n));
    std::vector<Tensor> sends, recvs;
    for (int r = 0; r < n; ++r) {
      out[usize(r)] = numbers<float>(me, rows_of(me, r), 100 * r + round);
      in[usize(r)].assign(usize(rows_of(r, me)), -1.0f);
      sends.push_back(tensor(out[usize(r)]));
      recvs.push_back(tensor(in[usize(r)]));
    }
    comm.all_to_all_v(sends, recvs);
    for (int r = 0; r < n; ++r)
      MMT_CHECK(in[usize(r)] == numbers<float>(r, rows_of(r, me), 100 * me + round), "from {}", r);
  }
}

void messages(Communicator& comm) {
  const int n = comm.size();
  const int me = comm.rank();
  // Everybody sends everything before anybody receives; sizes from nothing to more than an outbox holds. Collectives in
  // between do not disturb.
  constexpr int kMessages = 24;
  const auto size_of_message = [](int s, int d, int k) {
    return std::int64_t{k == 7 ? 0 : k == 20 ? 30001 : (s * 31 + d * 17 + k * 101) % 997};
  };
  for (int k = 0; k < kMessages; ++k) {
    for (int d = 0; d < n; ++d) {
      std::vector<float> v = numbers<float>(me, size_of_message(me, d, k), 1000 * d + k);
      comm.send(tensor(v), d);
    }
    if (k % 10 == 0) {
      std::vector<float> v = numbers<float>(me, 100);
      comm.all_reduce(tensor(v), ReduceOp::sum);
    }
  }
  comm.barrier();
  for (int s = n - 1; s >= 0; --s) {
    for (int k = 0; k < kMessages; ++k) {
      std::vector<float> v(usize(size_of_message(s, me, k)));
      comm.recv(tensor(v), s);
      MMT_CHECK(v == numbers<float>(s, size_of_message(s, me, k), 1000 * me + k), "message {} from {}", k, s);
    }
  }
}

void splits(Communicator& comm) {
  const int n = comm.size();
  const int me = comm.rank();
  // Odd and even ranks, in reversed order; rank 0 in neither.
  const auto part = comm.split(me == 0 ? -1 : me % 2, -me, "part");
  MMT_CHECK((part == nullptr) == (me == 0), "rank {}", me);
  if (part != nullptr) {
    std::vector<std::int64_t> members = comm::all_gather(*part, std::int64_t{me});
    MMT_CHECK(static_cast<int>(members.size()) == part->size() && members[usize(part->rank())] == me, "rank {}", me);
    for (std::size_t i = 1; i < members.size(); ++i)
      MMT_CHECK(members[i] == members[i - 1] - 2, "{} {}", members[i - 1], members[i]);
    const auto inner = part->split(0, 0, "inner");
    MMT_CHECK(inner->size() == part->size() && inner->rank() == part->rank() && inner->name() == "inner", "rank {}",
              me);
  }
  // Pairs across the first half and the second half, all at once.
  const auto pair = comm.split(me % ((n + 1) / 2), me, "pair");
  MMT_CHECK(comm::all_reduce(*pair, std::int64_t{1}, ReduceOp::sum) == pair->size(), "rank {}", me);
}

void shared_memory(Communicator& comm) {
  constexpr std::int64_t kCount = 50000;
  const SharedBlock block = comm.shared_alloc(usize(kCount) * sizeof(float));
  const std::int64_t have = comm::all_reduce(comm, std::int64_t{block ? 1 : 0}, ReduceOp::sum);
  MMT_CHECK(have == 0 || have == comm.size(), "{} of {} ranks have shared memory", have, comm.size());
  if (!block) return;
  MMT_CHECK(reinterpret_cast<std::uintptr_t>(block.data) % 64 == 0 && block.bytes == usize(kCount) * sizeof(float),
            "{}", block.bytes);
  const Tensor t(block.data, DType::f32, {kCount});
  for (const float v : t.span<float>()) MMT_CHECK(v == 0.0f, "not zeroed: {}", v);
  const std::vector<float> mine = numbers<float>(comm.rank(), kCount);
  std::memcpy(block.data, mine.data(), block.bytes);
  comm.all_reduce(t, ReduceOp::sum);
  const Tensor middle = t.row_range(1000, 20000);
  comm.all_reduce(middle, ReduceOp::max);
  for (std::int64_t i = 0; i < kCount; ++i) {
    MMT_CHECK(same(t.as<float>()[i], sum_in_rank_order<float>(comm.size(), i)), "element {}", i);
  }
  // One rank's tensor inside, another's outside.
  std::vector<float> outside = numbers<float>(comm.rank(), 9000);
  Tensor mixed = tensor(outside);
  if (comm.rank() % 2 == 0) {
    std::memcpy(block.data, outside.data(), usize(mixed.bytes()));
    mixed = t.row_range(0, 9000);
  }
  comm.all_reduce(mixed, ReduceOp::sum);
  for (std::int64_t i = 0; i < 9000; ++i) {
    MMT_CHECK(same(mixed.as<float>()[i], sum_in_rank_order<float>(comm.size(), i)), "element {}", i);
  }
}

void values(Communicator& comm) {
  const int n = comm.size();
  const int me = comm.rank();
  MMT_CHECK(comm::all_reduce(comm, 0.5 * me, ReduceOp::max) == 0.5 * (n - 1), "max");
  MMT_CHECK(
      any_of(comm, me == n - 1) && !any_of(comm, false) && all_of(comm, true) && all_of(comm, me != n - 1) == false,
      "any, all");
  const std::string long_text(100000, static_cast<char>('a' + me));
  MMT_CHECK(comm::broadcast(comm, long_text, n - 1) == std::string(100000, static_cast<char>('a' + n - 1)),
            "broadcast");
  const auto all = comm::all_gather(comm, std::string(usize(me), 'x'));
  for (int r = 0; r < n; ++r) MMT_CHECK(all[usize(r)] == std::string(usize(r), 'x'), "rank {}", r);
  agree_on_success(comm, "");
  try {
    agree_on_success(comm, me == n - 1 ? "no space" : "");
    MMT_CHECK(false, "rank {} did not hear of the problem", me);
  } catch (const Error& e) {
    MMT_CHECK(std::string(e.what()) == fmt::format("rank {}: no space", n - 1), "{}", e.what());
  }
}

std::uint64_t fingerprint(Communicator& comm) {
  std::vector<float> a = numbers<float>(comm.rank(), 33333);
  std::vector<bf16> b = numbers<bf16>(comm.rank(), 33333);
  comm.all_reduce(tensor(a), ReduceOp::sum);
  comm.all_reduce(tensor(b), ReduceOp::sum);
  std::uint64_t hash = 1;
  for (const float v : a) hash = hash64(hash, std::bit_cast<std::uint32_t>(v));
  for (const bf16 v : b) hash = hash64(hash, v.bits);
  return hash;
}

}  // namespace mmt::comm::bodies
