#pragma once
#include <functional>
#include <string>
#include <vector>

namespace bench {

/// Something that is timed, with the bytes per element that it has to move.
struct Subject {
  std::string name;
  double essential_bytes;  ///< read and written, each once
  double bus_bytes;        ///< with what a cache reads of a line before it is written (write-allocate)
  std::function<void()> run;
};

/// Seconds per run, by subject and round.
using Times = std::vector<std::vector<double>>;

/// Runs all subjects in turn, once per round and for about `slice_s` each, so that whatever else happens on the machine
/// happens to all of them.
Times time_rounds(const std::vector<Subject>& subjects, int rounds, double slice_s);

double median(std::vector<double> values);

/// The share of the machine's processor time that others took while this lived.
class ForeignShare {
 public:
  ForeignShare();
  double percent() const;

 private:
  double busy_s_, own_s_, total_s_;
};

}  // namespace bench
