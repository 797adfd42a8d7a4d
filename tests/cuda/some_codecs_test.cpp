// A codec of one's own, and some of the library's on PTX of other architectures.
#include <tightwire/core_codecs.hpp>
#include <tightwire/host/coder.hpp>

#include "comparisons.hpp"
#include "own_codec.hpp"
#include "some_codecs.hpp"

namespace tightwire::testing {
namespace {

using SomeCodecs = OnDevice;

TEST_F(SomeCodecs, AreTheSameAsOnTheHost) {
  const std::vector<std::shared_ptr<const tightwire::Coder>> on_host{
      std::make_shared<HostCoder<OwnAffine>>(),
      std::make_shared<HostCoder<Int8>>(),
      std::make_shared<HostCoder<Int3>>(Rotated<Int3>{64, {}, 5}),
      std::make_shared<HostCoder<NvFp4>>(),
      std::make_shared<HostCoder<Lloyd<3>>>(),
      std::make_shared<HostCoder<Bf16>>()};
  const auto on_device = some_codecs();
  ASSERT_EQ(on_host.size(), on_device.size());
  for (std::size_t i = 0; i < on_host.size(); ++i)
    for (const std::size_t number : {i, i + 7})
      ASSERT_NO_FATAL_FAILURE(expect_same({on_host[i], on_device[i]}, number)) << on_host[i]->spec();
}

}  // namespace
}  // namespace tightwire::testing
