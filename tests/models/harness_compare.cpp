#include "tests/models/harness.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace mmt::test {

std::vector<std::string> saved_names(const run::UnitPlan& plan, run::Life life) {
  std::vector<std::string> names;
  for (const run::PortPlan& port : plan.inputs)
    if (port.keep == life) names.push_back("in " + port.name);
  for (const run::TensorSpec& t : plan.tensors)
    if (t.life == life) names.push_back(t.name);
  if (life == run::Life::stash && plan.output.keep_grad == run::Life::stash) names.push_back("d_out");
  return names;
}

Pass run_pass(const run::Stage& stage, const NamedValues& values, const BlockData& data, const RunOptions& options,
              const std::vector<Values>& in, const Values& d_out, bool backward) {
  Params params(stage, values);
  params.begin_step();
  StageRun run(stage, params, data, options);
  run.forward(in);
  Pass pass;
  pass.out = run.out();
  pass.loss = run.loss();
  if (!stage.units.back()->plan().has_output()) pass.objective = run.objective();
  if (!d_out.empty()) pass.objective = dot(pass.out, d_out);
  if (!backward) return pass;
  run.backward(d_out);
  for (std::size_t p = 0; p < stage.ports().size(); ++p) pass.d_in.push_back(run.d_in(p));
  pass.grads = params.gradients();
  return pass;
}

std::vector<std::string> gradcheck(const run::Stage& stage, NamedValues values, const BlockData& data,
                                   const RunOptions& options, std::vector<Values> in, const Values& d_out,
                                   const GradcheckOptions& check) {
  std::vector<std::string> complaints;
  const Pass pass = run_pass(stage, values, data, options, in, d_out);
  Params params(stage, values);
  const auto objective = [&] {
    params.load();
    StageRun run(stage, params, data, options);
    run.forward(in);
    return stage.units.back()->plan().has_output() ? dot(run.out(), d_out) : run.objective();
  };
  // (f(x+h) - f(x-h)) / 2h has an error of h^2 f''' / 6 and a rounding noise of about 1e-16 |f| / h. Richardson's
  // combination of h and 2h makes the first one h^4; at h = 1e-3 both stay below 1e-10 of the scale of these
  // objectives.
  const auto derivative = [&](Values& x, const Values& direction, double h) {
    const Values start = x;
    const auto at = [&](double step) {
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = start[i] + step * direction[i];
      const double f = objective();
      x = start;
      return f;
    };
    const double near = (at(h) - at(-h)) / (2 * h), far = (at(2 * h) - at(-2 * h)) / (4 * h);
    return (4 * near - far) / 3;
  };
  const auto compare = [&](const std::string& name, Values& x, const Values& g, unsigned seed) {
    if (x.size() != g.size()) {
      complaints.push_back(fmt::format("{}: {} gradients of {} values", name, g.size(), x.size()));
      return;
    }
    if (x.empty()) return;
    Values direction = random_values(static_cast<std::int64_t>(x.size()), seed);
    const double length = norm2(direction);
    for (double& d : direction) d /= length;
    const auto judge = [&](const std::string& what, double numeric, double analytic, double scale) {
      analytic *= check.scale_of_bug;
      // Relative to the gradient's own size; the second term is the noise of a difference quotient of `objective`.
      const double tolerance = 1e-7 * scale + 1e-11 * std::abs(pass.objective) + 1e-11;
      if (!(std::abs(numeric - analytic) <= tolerance))
        complaints.push_back(
            fmt::format("{} {}: difference quotient {:.12g}, gradient {:.12g}", name, what, numeric, analytic));
    };
    // A random unit direction sees about |g| / sqrt(n) of the gradient; single elements are judged by themselves.
    judge("along a direction", derivative(x, direction, 1e-3), dot(g, direction),
          norm2(g) / std::sqrt(static_cast<double>(x.size())));
    std::mt19937 rng(seed);
    for (int e = 0; e < check.elements; ++e) {
      const std::size_t i = rng() % x.size();
      Values unit(x.size(), 0.0);
      unit[i] = 1.0;
      judge(fmt::format("[{}]", i), derivative(x, unit, 1e-3), g[i],
            std::max(std::abs(g[i]), norm2(g) / std::sqrt(static_cast<double>(x.size()))));
    }
  };
  unsigned seed = 100;
  for (const auto& [name, g] : pass.grads) compare(name, values.at(name), g, ++seed);
  const auto ports = stage.ports();
  for (std::size_t p = 0; p < ports.size(); ++p) {
    const run::PortPlan& port =
        stage.units[static_cast<std::size_t>(ports[p].unit)]->plan().inputs[static_cast<std::size_t>(ports[p].port)];
    if (port.needs_grad) compare("input " + port.name, in[p], pass.d_in[p], ++seed);
  }
  return complaints;
}

std::string join(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return all;
}

}  // namespace mmt::test
