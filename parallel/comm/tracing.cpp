#include "parallel/comm/tracing.h"

namespace mmt::comm {

namespace {

std::int64_t total(std::span<const Tensor> tensors) {
  std::int64_t bytes = 0;
  for (const Tensor& t : tensors) bytes += t.bytes();
  return bytes;
}

class TracingCommunicator final : public Communicator {
 public:
  TracingCommunicator(Communicator& inner, CommTrace& trace)
      : Communicator(inner.name()), inner_(inner), trace_(trace) {}
  TracingCommunicator(std::unique_ptr<Communicator> inner, CommTrace& trace)
      : Communicator(inner->name()), owned_(std::move(inner)), inner_(*owned_), trace_(trace) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void group_begin() override { inner_.group_begin(); }
  void group_end() override { inner_.group_end(); }
  SharedBlock shared_alloc(std::size_t bytes) override { return inner_.shared_alloc(bytes); }
  void reserve_sends(std::size_t bytes) override { inner_.reserve_sends(bytes); }
  void poll() override { inner_.poll(); }
  void set_doing(std::function<std::string()> doing) override { inner_.set_doing(std::move(doing)); }
  void abort(std::string_view cause) noexcept override { inner_.abort(cause); }

 protected:
  void do_all_reduce(const Tensor& data, ReduceOp op, const Stream& stream) override {
    note("all_reduce", data.bytes());
    inner_.all_reduce(data, op, stream);
  }
  void do_reduce_scatter_v(std::span<const Tensor> inputs, const Tensor& output, ReduceOp op,
                           const Stream& stream) override {
    note("reduce_scatter", total(inputs));
    inner_.reduce_scatter_v(inputs, output, op, stream);
  }
  void do_all_gather_v(const Tensor& input, std::span<const Tensor> outputs, const Stream& stream) override {
    note("all_gather", total(outputs));
    inner_.all_gather_v(input, outputs, stream);
  }
  void do_broadcast(const Tensor& data, int root, const Stream& stream) override {
    note("broadcast", data.bytes(), root);
    inner_.broadcast(data, root, stream);
  }
  void do_all_to_all_v(std::span<const Tensor> sends, std::span<const Tensor> recvs, const Stream& stream) override {
    note("all_to_all", total(sends));
    inner_.all_to_all_v(sends, recvs, stream);
  }
  void do_send(const Tensor& data, int to, const Stream& stream) override {
    note("send", data.bytes(), to);
    inner_.send(data, to, stream);
  }
  void do_recv(const Tensor& data, int from, const Stream& stream) override {
    note("recv", data.bytes(), from);
    inner_.recv(data, from, stream);
  }
  void do_barrier() override {
    note("barrier", 0);
    inner_.barrier();
  }
  std::unique_ptr<Communicator> do_split(int color, int key, std::string name) override {
    std::unique_ptr<Communicator> part = inner_.split(color, key, name);
    return part == nullptr ? nullptr : std::make_unique<TracingCommunicator>(std::move(part), trace_);
  }

 private:
  void note(const char* op, std::int64_t bytes, int peer = -1) { trace_.events.push_back({op, name(), bytes, peer}); }

  std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
  CommTrace& trace_;
};

}  // namespace

std::int64_t CommTrace::bytes(std::string_view op, std::string_view comm) const {
  std::int64_t sum = 0;
  for (const CommEvent& e : events) {
    if (e.op == op && (comm.empty() || e.comm == comm)) sum += e.bytes;
  }
  return sum;
}

std::unique_ptr<Communicator> make_tracing(Communicator& inner, CommTrace& trace) {
  return std::make_unique<TracingCommunicator>(inner, trace);
}

}  // namespace mmt::comm
