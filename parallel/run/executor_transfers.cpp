#include "parallel/run/executor_impl.h"

namespace mmt::run {

Executor::Impl::Channel Executor::Impl::make_channel(const StageGraph& graph, const Edge& edge, bool back) {
  const auto runs = [&](int stage) {
    return std::ranges::count(graph.stages[static_cast<std::size_t>(stage)].ranks, world_.rank()) > 0;
  };
  Channel c;
  c.comm = world_.split(runs(edge.producer) || runs(edge.consumer) ? 0 : -1, world_.rank(),
                        fmt::format("edge {}{}", back ? "-" : "", edge.id));
  if (c.comm == nullptr) return c;
  const std::vector<std::int64_t> members = comm::all_gather(*c.comm, std::int64_t{world_.rank()});
  for (std::size_t r = 0; r < members.size(); ++r) c.rank_of[static_cast<int>(members[r])] = static_cast<int>(r);
  // The sender computes on while its messages lie in the outbox. One that fits the outbox's first size needs no more.
  constexpr std::int64_t kFirst = std::int64_t{1} << 20, kMargin = 64 << 10;
  std::int64_t bytes = 0;
  const int sender = back ? edge.consumer : edge.producer;
  if (const auto at = places_.find(sender); at != places_.end() && members.size() > 1) {
    const StageSetup& setup = at->second->setup;
    const PortPlan& port = back ? port_plan(sender, port_of(sender, edge.port)) : output_plan(sender);
    const std::int64_t rows =
        rows_of(port.count, setup.cap,
                back ? setup.port_cap[static_cast<std::size_t>(port_of(sender, edge.port))] : std::int64_t{0});
    bytes = graph.credits * (rows * port.cols * size_of(port.dtype) + kMargin);
  }
  if (comm::all_reduce(*c.comm, bytes, comm::ReduceOp::max) > kFirst)
    c.comm->reserve_sends(static_cast<std::size_t>(std::max(bytes, std::int64_t{1} << 12)));
  return c;
}

Executor::Impl::Channel& Executor::Impl::channel(const Action& a) {
  return channels_[static_cast<std::size_t>(a.edge)][a.transposed ? 1 : 0];
}

const Edge& Executor::Impl::edge_of(const Action& a) { return graph_of(a).edges[static_cast<std::size_t>(a.edge)]; }

std::int64_t Executor::Impl::first_row(const Place& p, const PortPlan& port, std::int64_t own_rows) {
  if (port.count.parts == 1) return 0;
  const comm::Communicator* tp = p.setup.comms[static_cast<std::size_t>(Axis::tp)];
  MMT_CHECK(tp != nullptr && tp->size() == port.count.parts, "a port of {} shares on {} tensor-parallel ranks",
            port.count.parts, tp == nullptr ? 1 : tp->size());
  return tp->rank() * own_rows;
}

void Executor::Impl::gather_shares(Place& p, const PortPlan& port, const Tensor& buffer) {
  comm::Communicator* tp = p.setup.comms[static_cast<std::size_t>(Axis::tp)];
  if (tp == nullptr || port.count.parts > 1) return;
  std::vector<Tensor> shares;
  for (int i = 0; i < tp->size(); ++i) {
    const plan::Share share = plan::share_of(buffer.rows(), i, tp->size());
    shares.push_back(buffer.row_range(share.first, share.count));
  }
  tp->all_gather_v(shares[static_cast<std::size_t>(tp->rank())], shares, stream_);
}

void Executor::Impl::send_rows(const Action& a) {
  const Route& r = route(a, a.edge, a.block);
  const PortPlan& port = output_plan(a.stage);
  for (const int to : destinations_of(r, world_.rank())) {
    if (to == world_.rank()) continue;
    send_message(a, to, message(r, world_.rank(), to), port.dtype, port.cols,
                 [&](const RouteSegment& s) { return out_rows(a, a.stage, s); });
  }
  read_out(a, a.stage);
}

void Executor::Impl::recv_rows(const Action& a) {
  const Edge& edge = edge_of(a);
  const int port = port_of(a.stage, edge.port);
  const PortPlan& plan = port_plan(a.stage, port);
  Slot& s = slot(a, a.stage, a.block);
  const Tensor buffer = s.ports->take(plan.dtype, {port_rows(a, a.stage, port, a.block), plan.cols});
  s.in[static_cast<std::size_t>(port)] = buffer;
  const std::int64_t first = first_row(place(a.stage), plan, buffer.rows());
  const Route& r = route(a, a.edge, a.block);
  for (const int from : sources_of(r, world_.rank())) {
    const std::vector<RouteSegment> segments = message(r, from, world_.rank());
    const auto target = [&](const RouteSegment& seg) { return buffer.row_range(seg.dst_row - first, seg.count); };
    if (from != world_.rank()) {
      recv_message(a, from, segments, plan.dtype, plan.cols, target);
      continue;
    }
    for (const RouteSegment& seg : segments) ops::copy(stream_, target(seg), out_rows(a, edge.producer, seg));
    read_out(a, edge.producer);
  }
  gather_shares(place(a.stage), plan, buffer);
}

const PortPlan& Executor::Impl::output_plan(int stage) {
  const StageLayout& layout = place(stage).layout;
  return layout.plan(layout.num_units() - 1).output;
}

Tensor Executor::Impl::out_rows(const Action& a, int producer, const RouteSegment& seg) {
  const Tensor& out = slot(a, producer, seg.src_block).out;
  return out.row_range(seg.src_row - first_row(place(producer), output_plan(producer), out.rows()), seg.count);
}

void Executor::Impl::read_out(const Action& a, int producer) {
  for (const int p : graph_of(a).producers_of[static_cast<std::size_t>(a.edge)][static_cast<std::size_t>(a.block)]) {
    Slot& s = slot(a, producer, p);
    --s.out_readers;
    release_if_done(a, producer, p);
  }
}

void Executor::Impl::send_grads(const Action& a) {
  const Route& r = route(a, a.edge, a.block);
  const int port = port_of(a.stage, edge_of(a).port);
  Slot& s = slot(a, a.stage, a.block);
  const Tensor& d_in = s.d_in[static_cast<std::size_t>(port)];
  const std::int64_t first = first_row(place(a.stage), port_plan(a.stage, port), d_in.rows());
  for (const int to : sources_of(r, world_.rank())) {
    if (to == world_.rank()) continue;
    send_message(a, to, message(r, to, world_.rank()), d_in.dtype, d_in.cols(),
                 [&](const RouteSegment& seg) { return d_in.row_range(seg.dst_row - first, seg.count); });
  }
  --s.grad_readers;
  release_if_done(a, a.stage, a.block);
}

void Executor::Impl::recv_grads(const Action& a) {
  const Edge& edge = edge_of(a);
  const Route& r = route(a, a.edge, a.block);
  Place& p = place(a.stage);
  const PortPlan& plan = output_plan(a.stage);
  // Whose rows come back here: the whole lane's, or this rank's own where it holds a share.
  const std::vector<int> lane = plan.count.parts > 1 ? std::vector{world_.rank()} : p.setup.tp_group;
  std::int64_t rows = 0;
  for (const int rank : lane) rows += r.rows_out_of(rank);
  const std::int64_t before = first_row(p, plan, rows);
  const ArenaScope scope(work_);
  const Tensor returned = work_.take(plan.dtype, {rows, plan.cols});
  for (const int from : destinations_of(r, world_.rank())) {
    const std::vector<RouteSegment> segments = message(r, world_.rank(), from);
    const auto target = [&](const RouteSegment& seg) { return returned.row_range(seg.src_at - before, seg.count); };
    if (from != world_.rank()) {
      recv_message(a, from, segments, plan.dtype, plan.cols, target);
      continue;
    }
    const int port = port_of(edge.consumer, edge.port);
    Slot& consumer = slot(a, edge.consumer, a.block);
    const Tensor& d_in = consumer.d_in[static_cast<std::size_t>(port)];
    const std::int64_t first = first_row(place(edge.consumer), port_plan(edge.consumer, port), d_in.rows());
    for (const RouteSegment& seg : segments) {
      ops::copy(stream_, target(seg), d_in.row_range(seg.dst_row - first, seg.count));
    }
    --consumer.grad_readers;
    release_if_done(a, edge.consumer, a.block);
  }
  gather_shares(p, plan, returned);
  add_returned(a, r, lane, returned, before);
}

void Executor::Impl::add_returned(const Action& a, const Route& r, const std::vector<int>& lane, const Tensor& returned,
                                  std::int64_t before) {
  const PortPlan& plan = output_plan(a.stage);
  for (const int block :
       graph_of(a).producers_of[static_cast<std::size_t>(a.edge)][static_cast<std::size_t>(a.block)]) {
    Slot& s = slot(a, a.stage, block);
    --s.returns;
    if (s.d_out.defined()) continue;
    s.d_out = take(*s.ports, plan, rows_of_block(a, a.stage, block), 0);
    ops::fill(stream_, s.d_out, 0.0);
  }
  std::vector<RouteSegment> segments;
  for (const RouteSegment& seg : r.segments) {
    if (std::ranges::find(lane, seg.src_rank) != lane.end()) segments.push_back(seg);
  }
  std::ranges::sort(segments, {}, &RouteSegment::src_at);
  for (const RouteSegment& seg : segments) {
    const Tensor& d_out = slot(a, a.stage, seg.src_block).d_out;
    const std::int64_t first = first_row(place(a.stage), plan, d_out.rows());
    ops::add_in_place(stream_, d_out.row_range(seg.src_row - first, seg.count),
                      returned.row_range(seg.src_at - before, seg.count));
  }
}

}  // namespace mmt::run
