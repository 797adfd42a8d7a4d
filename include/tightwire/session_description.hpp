#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include <tightwire/bucket.hpp>
#include <tightwire/detail/number_text.hpp>
#include <tightwire/policy.hpp>
#include <tightwire/session_options.hpp>
#include <tightwire/version.hpp>

namespace tightwire::detail {

inline std::string describe(const MomentumCorrection& momentum) {
  if (!momentum) return "off";
  return number_text(momentum.factor) + (momentum.nesterov ? ", Nesterov" : "") +
         (momentum.masking ? "" : ", without masking") +
         (momentum.clip_norm != 0.0f ? ", clipped to " + number_text(momentum.clip_norm) : "");
}

/// Without what is planned for it.
inline std::string describe(const Parameter& parameter) {
  std::string text = "\"" + parameter.name + "\" [";
  for (std::size_t d = 0; d < parameter.shape.size(); ++d) text += (d ? "," : "") + std::to_string(parameter.shape[d]);
  text += "] " + std::string(to_string(parameter.type)) + " ";
  if (parameter.operation != Operation::all_reduce) text += std::string(to_string(parameter.operation)) + " ";
  if (parameter.operation == Operation::broadcast) text += "from rank " + std::to_string(parameter.root) + " ";
  if (parameter.priority != 0) text += "priority " + std::to_string(parameter.priority) + " ";
  return text;
}

inline std::string describe(const Parameter& parameter, const SessionOptions& options) {
  const std::string text = describe(parameter);
  const Codec& codec = options.policy.choose(parameter, options.codec);
  if (const LowRankSettings* low_rank = codec.low_rank()) {
    const low_rank::Shape shape = low_rank::matrix_shape(parameter.shape);
    const std::string matrix = std::to_string(shape.rows) + " x " + std::to_string(shape.columns);
    if (!low_rank::worth_it(shape, low_rank->least_rank()))
      return text + "exact, since factors of " + matrix + " are not less than half";
    return text + codec.spec() + ", of " + matrix;
  }
  const bool stochastic = !codec.sparse() && codec.coder(parameter.type)->stochastic(options.error_feedback);
  return text + codec.spec() + (stochastic ? ", rounded stochastically" : "");
}

inline std::string describe(const BucketPlan& plan) {
  return std::string(plan.operation != Operation::all_reduce ? to_string(plan.operation) : to_string(plan.algorithm)) +
         ", " + std::to_string(plan.chunks.size()) + " chunks, " + std::to_string(plan.wire_bytes(0)) +
         " bytes from rank 0";
}

inline std::string describe(const Bucket& bucket) {
  std::string text = "of parameters";
  for (const std::size_t parameter : bucket.parameters) text += " " + std::to_string(parameter);
  std::string parts;
  const auto part = [&](const std::string& more) { parts += (parts.empty() ? ": " : "; ") + more; };
  if (const HierarchicalPlan& plan = bucket.hierarchical_plan; !plan.empty())
    part("over " + std::to_string(plan.nodes.nodes()) + " nodes of " + plan.nodes.sizes() + ", " +
         std::to_string(plan.scatter.chunks.size()) + " chunks, summed " + std::to_string(plan.group) +
         " at once across, encoded in " + std::to_string(plan.encoded_inside) + " bytes inside, " +
         std::to_string(plan.encoded_across) + " across, " + (plan.gather.passes_on ? "passed on" : "gathered") +
         " inside");
  else if (!bucket.planned.empty())
    part(describe(bucket.plan));
  if (!bucket.planned_sparse.empty())
    part("topk " + std::string(to_string(bucket.sparse_plan.algorithm)) + " of " +
         std::to_string(bucket.sparse_plan.elements()) + " elements");
  if (!bucket.planned_random.empty()) part("randomk " + describe(bucket.random_plan));
  if (!bucket.planned_matrices.empty()) {
    const low_rank::Plan& plan = bucket.low_rank_plan;
    std::string forms;
    for (const low_rank::Form& form : plan.forms)
      forms += (plan.forms.size() > 1 ? " at rank " + std::to_string(form.rank) : "") + " left factors " +
               describe(form.factors[0]) + ", right factors " + describe(form.factors[1]) + ",";
    forms.pop_back();
    std::string batches;
    for (const low_rank::Batch& batch : plan.batches) {
      const low_rank::Shape shape = plan.matrices[batch.front()].shape;
      batches += (batches.empty() ? "" : ", ") + std::to_string(batch.size()) + " of " + std::to_string(shape.rows) +
                 " x " + std::to_string(shape.columns);
    }
    part("powersgd of " + std::to_string(plan.matrices.size()) + " matrices, together " + batches + ":" + forms +
         (plan.start_step != 0 ? ", whole " + describe(plan.whole) : ""));
  }
  return text + parts;
}

/// What ranks must have alike, line by line.
template <class Buckets>
std::string describe(const SessionOptions& options, int ranks, const std::vector<Parameter>& parameters,
                     const Buckets& buckets) {
  std::string text;
  const auto line = [&](const std::string& more) { text += more + "\n"; };
  line("wire version " + std::to_string(kWireVersion));
  line("world size " + std::to_string(ranks));
  line(std::string("operation ") + (options.average ? "mean" : "sum"));
  line(std::string("error feedback ") + (options.error_feedback ? "on" : "off") +
       (options.residual == ElementType::f32 ? "" : ", residuals in " + std::string(to_string(options.residual))));
  line(std::string("rollback ") + (options.rollback ? "on" : "off"));
  line(std::string("non-finite policy ") + to_string(options.nonfinite));
  if (options.hierarchy)
    line("hierarchy of nodes " +
         (options.hierarchy.automatic ? "still to be found" : nodes_of(options.hierarchy, ranks).describe()) +
         ", inside " + options.hierarchy.inside.spec());
  if (options.momentum) line("momentum correction " + describe(options.momentum));
  line("seed " + std::to_string(options.seed));
  line("elements of a share " +
       (options.plan.share_elements == 0 ? "automatic" : std::to_string(options.plan.share_elements)));
  for (std::size_t id = 0; id < parameters.size(); ++id)
    line("parameter " + std::to_string(id) + " " + describe(parameters[id], options));
  for (std::size_t id = 0; id < buckets.size(); ++id)
    line("bucket " + std::to_string(id) + " " + describe(buckets[id]));
  return text;
}

}  // namespace tightwire::detail
