#include "device_elements.hpp"

#include <algorithm>
#include <cstring>

#include "places.hpp"

namespace tightwire::cuda::detail {

using low_rank::FactorProduct, low_rank::Side;

namespace {

void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, Stream stream, int rank) {
  if (bytes != 0) require(cudaMemcpyAsync(to, from, bytes, kind, stream), "cudaMemcpyAsync", rank);
}
ProductOnDevice on_device(const FactorProduct& product) {
  return {static_cast<std::uint32_t>(product.rank), product.left, product.right};
}

}  // namespace

/// What was in pinned memory for the use before has arrived: the product of this one has been waited for since.
void OwedOnDevice::set(const FactorProduct& product) {
  rank = product.rank;
  const std::size_t left = rank * shape_.rows, right = rank * shape_.columns;
  std::copy_n(product.left, left, room_.pinned_left);
  std::copy_n(product.right, right, room_.pinned_right);
  detail::copy(room_.left, room_.pinned_left, left * sizeof(float), cudaMemcpyHostToDevice, stream_, rank_of_job_);
  detail::copy(room_.right, room_.pinned_right, right * sizeof(float), cudaMemcpyHostToDevice, stream_, rank_of_job_);
}
void OwedOnDevice::copy(const OwedOnDevice& from) {
  rank = from.rank;
  const std::size_t left = rank * shape_.rows, right = rank * shape_.columns;
  detail::copy(room_.left, from.room_.left, left * sizeof(float), cudaMemcpyDeviceToDevice, stream_, rank_of_job_);
  detail::copy(room_.right, from.room_.right, right * sizeof(float), cudaMemcpyDeviceToDevice, stream_, rank_of_job_);
}
void OwedOnDevice::subtract() const {
  multiply_left({.rows = shape_.rows,
                 .columns = shape_.columns,
                 .x = nullptr,
                 .type = ElementType::f32,
                 .before = residual,
                 .after = residual,
                 .owed = on_device(factors()),
                 .rank = 0,
                 .factor = nullptr,
                 .product = nullptr,
                 .partial = nullptr},
                rank_of_job_, stream_);
}

DeviceElements::DeviceElements(const low_rank::PlannedMatrix& plan, std::size_t columns, const Place& place)
    : plan_(plan), place_(place), room_(take_memory(columns)), lazy_(lazy_residual()), ended_(place.rank) {}

DeviceElements::Room DeviceElements::take_memory(std::size_t columns) {
  Room room{};
  const auto of_factors = [&](Places& places, std::array<float*, 2>& factors) {
    for (const Side side : {Side::left, Side::right})
      factors[static_cast<std::size_t>(side)] = places.take<float>(count(side, columns));
  };
  const auto lay_out_device = [&](Places places) {
    for (auto* factors : {&room.fixed, &room.product, &room.mean}) of_factors(places, *factors);
    for (OwedOnDevice::Room& owed : room.owed) {
      owed.left = places.take<float>(count(Side::left, columns));
      owed.right = places.take<float>(count(Side::right, columns));
    }
    const std::uint64_t blocks = blocks_of(plan_.shape.columns);
    room.partial = places.take<float>(blocks == 1 ? 0 : blocks * count(Side::left, columns));
    room.overflows = places.take<unsigned long long>(1);
    return places.bytes();
  };
  const auto lay_out_pinned = [&](Places places) {
    for (auto* factors : {&room.pinned_fixed, &room.pinned_product, &room.pinned_mean}) of_factors(places, *factors);
    for (OwedOnDevice::Room& owed : room.owed) {
      owed.pinned_left = places.take<float>(count(Side::left, columns));
      owed.pinned_right = places.take<float>(count(Side::right, columns));
    }
    room.overflows_pinned = places.take<unsigned long long>(1);
    return places.bytes();
  };
  on_device_ = Memory(lay_out_device(Places(nullptr)), Memory::Kind::device, place_.rank);
  pinned_ = Memory(lay_out_pinned(Places(nullptr)), Memory::Kind::pinned, place_.rank);
  lay_out_device(Places(on_device_.data()));
  lay_out_pinned(Places(pinned_.data()));
  *room.overflows_pinned = 0;
  return room;
}
low_rank::LazyResidual<OwedOnDevice> DeviceElements::lazy_residual() const {
  const auto owed = [&](std::size_t i) {
    return OwedOnDevice(plan_.shape, room_.owed[i], place_.rank, place_.exchanges);
  };
  return {owed(0), owed(1)};
}
void DeviceElements::leave_memory() noexcept {
  on_device_.leave();
  pinned_.leave();
}

void DeviceElements::begin(void* data, const Residual& residual) {
  data_ = static_cast<std::byte*>(data);
  residual_ = residual;
  added_ = forgets_ = false;
}

void DeviceElements::pass(const Residual& residual) {
  if (residual.before != residual.after)
    copy(residual.after, residual.before, plan_.elements() * sizeof(float), cudaMemcpyDeviceToDevice, place_.exchanges,
         place_.rank);
  lazy_.copied(residual);
}

void DeviceElements::upload(float* to, float* pinned, const float* from, std::size_t count, Stream stream) {
  std::copy_n(from, count, pinned);
  copy(to, pinned, count * sizeof(float), cudaMemcpyHostToDevice, stream, place_.rank);
  copied_bytes_ += count * sizeof(float);
}

/// Of A, as it is once gradient and residual were added.
LeftProductJob DeviceElements::left_job() const {
  const bool kept = static_cast<bool>(residual_);
  return {.rows = plan_.shape.rows,
          .columns = plan_.shape.columns,
          .x = kept ? reinterpret_cast<const std::byte*>(residual_.after) : data_,
          .type = kept ? ElementType::f32 : plan_.type,
          .before = nullptr,
          .after = nullptr,
          .owed = {},
          .rank = 0,
          .factor = nullptr,
          .product = nullptr,
          .partial = room_.partial};
}
void DeviceElements::add(LeftProductJob& job) {
  if (!residual_) return;
  job.x = data_;
  job.type = plan_.type;
  job.before = residual_.before;
  job.after = residual_.after;
  job.owed = on_device(lazy_.owed());
}

void DeviceElements::multiply(Side side, std::size_t columns, const float* fixed, float* /*product*/) {
  const Stream stream = added_ ? place_.exchanges : place_.encodes;
  const auto mine = static_cast<std::size_t>(side), others = static_cast<std::size_t>(other(side));
  upload(room_.fixed[others], room_.pinned_fixed[others], fixed, count(other(side), columns), stream);
  LeftProductJob job = left_job();
  const bool adds = !added_ && residual_;
  if (side == Side::left) {
    if (adds) add(job);
    job.rank = static_cast<std::uint32_t>(columns);
    job.factor = room_.fixed[others];
    job.product = room_.product[mine];
    multiply_left(job, place_.rank, stream);
  } else {
    if (adds) {
      LeftProductJob sum = job;
      add(sum);
      multiply_left(sum, place_.rank, stream);
    }
    multiply_right({.rows = job.rows,
                    .columns = job.columns,
                    .matrix = job.x,
                    .type = job.type,
                    .rank = static_cast<std::uint32_t>(columns),
                    .factor = room_.fixed[others],
                    .product = room_.product[mine]},
                   place_.rank, stream);
  }
  if (adds) lazy_.paid(residual_);
  added_ = true;
  copy(room_.pinned_product[mine], room_.product[mine], count(side, columns) * sizeof(float), cudaMemcpyDeviceToHost,
       stream, place_.rank);
  copied_bytes_ += count(side, columns) * sizeof(float);
  ended_.record(stream, place_.rank);
}
void DeviceElements::take(Side side, std::span<float> product) {
  std::copy_n(room_.pinned_product[static_cast<std::size_t>(side)], product.size(), product.data());
}

void DeviceElements::undo() {
  if (residual_.before != residual_.after) {
    copy(residual_.after, residual_.before, plan_.elements() * sizeof(float), cudaMemcpyDeviceToDevice,
         place_.exchanges, place_.rank);
    lazy_.copied(residual_);
    return;
  }
  forgets_ = true;  // by the kernel that writes the gradient
}

std::uint64_t DeviceElements::write(const FactorProduct& product, float rest_times) {
  for (const Side side : {Side::left, Side::right}) {
    const auto s = static_cast<std::size_t>(side);
    upload(room_.mean[s], room_.pinned_mean[s], side == Side::left ? product.left : product.right,
           count(side, product.rank), place_.exchanges);
  }
  write_product({.rows = plan_.shape.rows,
                 .columns = plan_.shape.columns,
                 .product = on_device({product.rank, room_.mean[0], room_.mean[1]}),
                 .out = data_,
                 .type = plan_.type,
                 .after = residual_.after,
                 .forgets = forgets_,
                 .rest_times = rest_times,
                 .overflows = room_.overflows},
                place_.rank, place_.exchanges);
  copy(room_.overflows_pinned, room_.overflows, sizeof *room_.overflows, cudaMemcpyDeviceToHost, place_.exchanges,
       place_.rank);
  return 0;
}

}  // namespace tightwire::cuda::detail
