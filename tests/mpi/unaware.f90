! A program in Fortran that knows MPI and nothing of us.
!
!     unaware mpi | f08 exact     no sum differs from what MPI gives, by the calls of that module
!     unaware mpi | f08 close     sums of many reals are within int4's bounds, and not exact; everything else is exact
module sums
  implicit none
  integer, parameter :: many = 100003
  integer :: rank, ranks, failures = 0
  real :: contribution(many), total(many), expected(many)
contains
  subroutine fill()
    integer :: i, r
    contribution = [(real(mod(i * 37 + rank * 11, 201) - 100), i = 1, many)]
    expected = 0
    do r = 0, ranks - 1
      expected = expected + [(real(mod(i * 37 + r * 11, 201) - 100), i = 1, many)]
    end do
  end subroutine

  subroutine check(compressed, what)
    logical, intent(in) :: compressed
    character(*), intent(in) :: what
    real :: error
    error = maxval(abs(total - expected))
    if (compressed .eqv. (error > 0)) then
      if (error <= ranks * 212.5 / 8) return
    end if
    failures = failures + 1
    write (0, *) 'rank', rank, 'FAILED: ', what, error
  end subroutine
end module

subroutine with_mpi(compressed)
  use mpi
  use sums
  implicit none
  logical, intent(in) :: compressed
  integer :: request, error, one
  double precision, save :: doubles(many)
  call MPI_Init(error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
  call fill()
  call MPI_Allreduce(contribution, total, many, MPI_REAL, MPI_SUM, MPI_COMM_WORLD, error)
  call check(compressed, 'MPI_Allreduce')
  total = contribution
  call MPI_Allreduce(MPI_IN_PLACE, total, many, MPI_REAL4, MPI_SUM, MPI_COMM_WORLD, error)
  call check(compressed, 'MPI_Allreduce in place')
  call MPI_Iallreduce(contribution, total, many, MPI_REAL, MPI_SUM, MPI_COMM_WORLD, request, error)
  call MPI_Wait(request, MPI_STATUS_IGNORE, error)
  call check(compressed, 'MPI_Iallreduce')
  doubles = contribution
  call MPI_Allreduce(MPI_IN_PLACE, doubles, many, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, error)
  total = real(doubles)
  call check(.false., 'doubles')
  one = 1
  call MPI_Allreduce(MPI_IN_PLACE, one, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, error)
  if (one /= ranks .or. error /= MPI_SUCCESS) failures = failures + 1
  call MPI_Allreduce(MPI_IN_PLACE, failures, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, error)
  call MPI_Finalize(error)
end subroutine

subroutine with_f08(compressed)
  use mpi_f08
  use sums
  implicit none
  logical, intent(in) :: compressed
  type(MPI_Request) :: request
  integer :: level
  call MPI_Init_thread(MPI_THREAD_MULTIPLE, level)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  call fill()
  call MPI_Allreduce(contribution, total, many, MPI_REAL, MPI_SUM, MPI_COMM_WORLD)
  call check(compressed, 'MPI_Allreduce')
  total = contribution
  call MPI_Iallreduce(MPI_IN_PLACE, total, many, MPI_REAL, MPI_SUM, MPI_COMM_WORLD, request)
  call MPI_Wait(request, MPI_STATUS_IGNORE)
  call check(compressed, 'MPI_Iallreduce in place')
  call MPI_Allreduce(MPI_IN_PLACE, failures, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD)
  call MPI_Finalize()
end subroutine

program unaware
  use sums
  implicit none
  character(8) :: words(2)
  call get_command_argument(1, words(1))
  call get_command_argument(2, words(2))
  if (words(1) == 'mpi') call with_mpi(words(2) == 'close')
  if (words(1) == 'f08') call with_f08(words(2) == 'close')
  if (rank == 0) print *, failures, 'failures'
  if (failures /= 0) stop 1
end program
