#include "context.hpp"

#include <array>
#include <cstdlib>
#include <memory>
#include <utility>

#include "error_text.hpp"
#include "signals.hpp"

namespace tightwire::ucx {
namespace {

struct ReleaseConfig {
  void operator()(ucp_config_t* config) const noexcept { ucp_config_release(config); }
};
using Config = std::unique_ptr<ucp_config_t, ReleaseConfig>;

struct Setting {
  const char* name;
  const char* variable;
  const char* value;
};

/// What we want otherwise than UCX unless the user says something, all for the sake of TCP: no zero-copy sends.
/// UCX 1.13 completes one twice when a peer's death is met by the send and not by a receive, and where UCX is built
/// with assertions, as in Debian, that aborts this process. With segments of this size copying costs no more processor
/// time than zero-copy does with UCX's. Shared memory (cma) and RDMA rendezvous are not touched by these.
constexpr std::array kSettings = {
    Setting{"ZCOPY_THRESH", "UCX_ZCOPY_THRESH", "inf"}, Setting{"PUT_ENABLE", "UCX_TCP_PUT_ENABLE", "n"},
    Setting{"TX_SEG_SIZE", "UCX_TCP_TX_SEG_SIZE", "128K"}, Setting{"RX_SEG_SIZE", "UCX_TCP_RX_SEG_SIZE", "128K"}};

Config read_config(const Options& options) {
  ucp_config_t* raw = nullptr;
  require_ok(ucp_config_read(nullptr, nullptr, &raw), "reading the configuration");
  Config config(raw);
  if (!options.transports.empty())
    require_ok(ucp_config_modify(config.get(), "TLS", options.transports.c_str()),
               "choosing transports '" + options.transports + "'");
  if (!options.devices.empty())
    require_ok(ucp_config_modify(config.get(), "NET_DEVICES", options.devices.c_str()),
               "choosing devices '" + options.devices + "'");
  for (const Setting& setting : kSettings)
    if (std::getenv(setting.variable) == nullptr)
      require_ok(ucp_config_modify(config.get(), setting.name, setting.value),
                 std::string("setting ") + setting.variable);
  return config;
}

}  // namespace

Context::Context(const Options& options, int size) {
  restore_signal_handlers();
  const Config config = read_config(options);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_TAG_SENDER_MASK | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  params.tag_sender_mask = ~std::uint64_t{0} << 48;
  params.estimated_num_eps = static_cast<std::size_t>(size);
  const ucs_status_t status = ucp_init(&params, config.get(), &context_);
  if (status == UCS_ERR_NO_DEVICE)
    throw Error(Errc::unsupported, "ucx: no usable transport; asked for transports '" + options.transports +
                                       "' (empty: UCX_TLS) on devices '" + options.devices +
                                       "' (empty: UCX_NET_DEVICES)" + LogCapture::text());
  require_ok(status, "ucp_init");
}

void Context::close() noexcept {
  if (context_ != nullptr) ucp_cleanup(std::exchange(context_, nullptr));
}

Worker::Worker(const Context& context) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  require_ok(ucp_worker_create(context.get(), &params, &worker_), "creating a worker");
  const ucs_status_t status = ucp_worker_get_efd(worker_, &event_descriptor_);
  if (status == UCS_OK) return;
  close();
  require_ok(status, "getting the worker's event descriptor");
}

std::string Worker::address() const {
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  require_ok(ucp_worker_get_address(worker_, &address, &bytes), "getting the worker's address");
  std::string copy(reinterpret_cast<const char*>(address), bytes);
  ucp_worker_release_address(worker_, address);
  return copy;
}

void Worker::close() noexcept {
  if (worker_ != nullptr) ucp_worker_destroy(std::exchange(worker_, nullptr));
  event_descriptor_ = -1;
}

std::string version() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucp_get_version(&major, &minor, &release);
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release);
}

}  // namespace tightwire::ucx
