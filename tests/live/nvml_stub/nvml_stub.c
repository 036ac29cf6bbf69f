/* A libnvidia-ml.so.1 for tests: NVML's entry points, signatures and return codes over GPUs that live in a file.
 *
 * The file is named by GRIDCHASE_NVML_STUB and mapped by every process that opens NVML, so all see one machine. A GPU
 * draws what its curve says at the enforced limit while it is busy, else its idle power; the energy counter integrates
 * that over CLOCK_MONOTONIC and shows it on a grid in time, as real counters do. What drivers do to a write that they
 * have accepted is in `struct write_faults`. The stub_… functions at the end are the tests' own door. machine.py mirrors `struct machine`; both must change together (`size` in the header guards it).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x4c4d564eu
#define LAYOUT 2u
#define MAX_GPUS 16
#define MAX_POINTS 64
#define MAX_PIDS 32
#define MAX_ENTRIES 40
#define MAX_WRITES 256
#define ARCH_AMPERE 7
#define API __attribute__((visibility("default")))

enum {
  OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, INSUFFICIENT_SIZE = 7,
  DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, LIB_RM_VERSION_MISMATCH = 18
};

#define ENTRY_POINTS(X) \
  X(nvmlInitWithFlags) X(nvmlInit_v2) X(nvmlShutdown) X(nvmlSystemGetDriverVersion) X(nvmlSystemGetNVMLVersion) \
  X(nvmlDeviceGetCount_v2) X(nvmlDeviceGetHandleByIndex_v2) X(nvmlDeviceGetUUID) X(nvmlDeviceGetName) \
  X(nvmlDeviceGetIndex) X(nvmlDeviceGetPowerManagementLimitConstraints) X(nvmlDeviceGetPowerManagementDefaultLimit) \
  X(nvmlDeviceGetPowerManagementLimit) X(nvmlDeviceGetEnforcedPowerLimit) X(nvmlDeviceSetPowerManagementLimit) \
  X(nvmlDeviceGetPowerUsage) X(nvmlDeviceGetTotalEnergyConsumption) X(nvmlDeviceGetFieldValues) \
  X(nvmlDeviceGetUtilizationRates) X(nvmlDeviceGetTemperature) X(nvmlDeviceGetTemperatureV) \
  X(nvmlDeviceGetComputeRunningProcesses_v3) X(nvmlDeviceGetComputeRunningProcesses_v2) X(nvmlDeviceGetMigMode) X(nvmlDeviceGetPersistenceMode) \
  X(nvmlDeviceSetPersistenceMode) X(nvmlDeviceGetArchitecture)

#define AS_ENUM(name) E_##name,
#define AS_NAME(name) #name,
enum { ENTRY_POINTS(AS_ENUM) N_ENTRIES };
static const char *const ENTRY_NAMES[] = {ENTRY_POINTS(AS_NAME)};
_Static_assert(N_ENTRIES <= MAX_ENTRIES, "machine.py has room for MAX_ENTRIES entry points");

struct hooks {
  uint64_t calls[MAX_ENTRIES];
  int32_t fail_code[MAX_ENTRIES];
  uint32_t hang_ms[MAX_ENTRIES];
};

struct point {
  uint32_t limit_mw, power_mw;
  uint64_t iteration_ns;
};

/* What happens to a write that returns SUCCESS. */
struct write_faults {
  uint32_t delay_ms;           /* it takes effect this much later; a newer write takes its place */
  uint32_t readback_delay_ms;  /* it takes effect now, but the former limit is read back for this long */
  uint32_t n_ignored;          /* the next ones have no effect; UINT32_MAX: all of them */
  uint32_t min_mw, max_mw;     /* it is clamped to these; 0: it is not */
};

/* An accepted write: what was asked for, by which process. */
struct write {
  uint64_t time_ns;
  uint32_t pid, limit_mw;
};

struct gpu {
  char uuid[96], name[96];
  uint32_t index, min_mw, max_mw, default_mw, requested_mw, external_mw;
  uint32_t is_writable, has_energy_counter, has_power_fields, mig_mode /* 0: none, 1: off, 2: on */, is_persistent, is_busy, is_lost;
  uint32_t temperature_c, idle_power_mw, told_power_mw /* 0: the truth */, is_counter_stuck, has_wide_processes, n_points, n_pids;
  uint32_t pids[MAX_PIDS];
  struct point points[MAX_POINTS];
  struct hooks hooks;
  uint64_t counter_period_ns, settled_ns;
  double energy_mj, visible_energy_mj;
  struct write_faults faults;
  uint32_t pending_mw, former_mw, n_writes;
  uint64_t pending_ns, former_until_ns; /* when the pending limit takes effect; how long the former one is read back */
  struct write writes[MAX_WRITES];      /* a ring: write k is at k % MAX_WRITES */
};

struct machine {
  uint32_t magic, layout, size, n_gpus;
  union { pthread_mutex_t mutex; char room[64]; } lock;
  char driver_version[80], nvml_version[80];
  struct hooks hooks;
  struct gpu gpus[MAX_GPUS];
};

typedef struct gpu *nvmlDevice_t;
typedef struct { uint32_t gpu, memory; } nvmlUtilization_t;
typedef struct { uint32_t version, sensor; int32_t celsius; } nvmlTemperature_t;
typedef struct { uint32_t pid; uint64_t used_bytes; uint32_t gpu_instance, compute_instance; } nvmlProcessInfo_t;
typedef struct {
  uint32_t field, scope;
  int64_t timestamp_us, latency_us;
  uint32_t type;
  int32_t code;
  union { double f64; uint32_t u32; uint64_t u64; } value;
} nvmlFieldValue_t;

static struct machine *here;
static int n_inits;
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;

/* The lock is robust: a process killed while it holds it leaves it to the next. */
static void lock(struct machine *machine) {
  if (pthread_mutex_lock(&machine->lock.mutex) == EOWNERDEAD) pthread_mutex_consistent(&machine->lock.mutex);
}

static void unlock(struct machine *machine) { pthread_mutex_unlock(&machine->lock.mutex); }

static struct machine *machine_of(struct gpu *gpu) {
  return (struct machine *)((char *)(gpu - gpu->index) - offsetof(struct machine, gpus));
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint32_t enforced_mw(const struct gpu *gpu) {
  return gpu->external_mw && gpu->external_mw < gpu->requested_mw ? gpu->external_mw : gpu->requested_mw;
}

/* Power and iteration time at the enforced limit: linear between the measured points, constant beyond them. */
static struct point operating_point(const struct gpu *gpu) {
  uint32_t limit_mw = enforced_mw(gpu), above = 0;
  while (above < gpu->n_points && gpu->points[above].limit_mw < limit_mw) above++;
  if (above == 0) return gpu->points[0];
  if (above == gpu->n_points) return gpu->points[above - 1];
  const struct point *low = &gpu->points[above - 1], *high = &gpu->points[above];
  double share = (double)(limit_mw - low->limit_mw) / (double)(high->limit_mw - low->limit_mw);
  return (struct point){
      limit_mw, (uint32_t)(low->power_mw + share * ((double)high->power_mw - low->power_mw)),
      (uint64_t)((double)low->iteration_ns + share * ((double)high->iteration_ns - (double)low->iteration_ns))};
}

static uint32_t power_mw(const struct gpu *gpu) {
  return gpu->is_busy ? operating_point(gpu).power_mw : gpu->idle_power_mw;
}

/* Integrate the energy up to a moment, at the present power. */
static void integrate(struct gpu *gpu, uint64_t until_ns) {
  uint64_t period = gpu->counter_period_ns ? gpu->counter_period_ns : 1;
  uint64_t tick = until_ns / period * period;
  double mj_per_ns = power_mw(gpu) / 1e9;
  if (tick > gpu->settled_ns && !gpu->is_counter_stuck)
    gpu->visible_energy_mj = gpu->energy_mj + mj_per_ns * (double)(tick - gpu->settled_ns);
  gpu->energy_mj += mj_per_ns * (double)(until_ns - gpu->settled_ns);
  gpu->settled_ns = until_ns;
}

/* Bring the GPU up to now: a late write whose time has come, and the energy. Call it with the lock held. */
static void settle(struct gpu *gpu) {
  uint64_t now = now_ns();
  if (gpu->pending_mw && now >= gpu->pending_ns) {
    if (gpu->pending_ns > gpu->settled_ns) integrate(gpu, gpu->pending_ns);
    gpu->requested_mw = gpu->pending_mw;
    gpu->pending_mw = 0;
  }
  integrate(gpu, now);
}

/* A value of the GPU as it is now. */
static uint32_t current(struct gpu *gpu, uint32_t (*value)(const struct gpu *)) {
  lock(machine_of(gpu));
  settle(gpu);
  uint32_t number = value(gpu);
  unlock(machine_of(gpu));
  return number;
}

static uint32_t requested_mw(const struct gpu *gpu) { return gpu->requested_mw; }

static uint32_t readback_mw(const struct gpu *gpu) {
  return now_ns() < gpu->former_until_ns ? gpu->former_mw : gpu->requested_mw;
}

/* What the board says that it draws. */
static uint32_t told_power_mw(const struct gpu *gpu) {
  return gpu->told_power_mw ? gpu->told_power_mw : power_mw(gpu);
}

static uint64_t visible_energy_mj(struct gpu *gpu) {
  lock(machine_of(gpu));
  settle(gpu);
  uint64_t energy_mj = (uint64_t)gpu->visible_energy_mj;
  unlock(machine_of(gpu));
  return energy_mj;
}

/* Count a call, hang for as long as the tests say (they may change their mind), and return the injected code. */
static int enter(struct hooks *hooks, int entry) {
  __atomic_add_fetch(&hooks->calls[entry], 1, __ATOMIC_SEQ_CST);
  uint64_t start = now_ns();
  while (now_ns() - start < __atomic_load_n(&hooks->hang_ms[entry], __ATOMIC_SEQ_CST) * 1000000ull)
    nanosleep(&(struct timespec){0, 1000000}, NULL);
  return __atomic_load_n(&hooks->fail_code[entry], __ATOMIC_SEQ_CST);
}

#define ENTER_SYSTEM(name) \
  do { \
    if (!n_inits) return UNINITIALIZED; \
    int code = enter(&here->hooks, E_##name); \
    if (code) return code; \
  } while (0)

#define ENTER_GPU(name, gpu) \
  do { \
    if (!n_inits) return UNINITIALIZED; \
    if (!(gpu)) return INVALID_ARGUMENT; \
    int code = enter(&(gpu)->hooks, E_##name); \
    if ((gpu)->is_lost) return GPU_IS_LOST; \
    if (code) return code; \
  } while (0)

static int put_text(const char *text, char *buffer, unsigned length) {
  if (strlen(text) >= length) return INSUFFICIENT_SIZE;
  strcpy(buffer, text);
  return OK;
}

/* Map the machine that the environment names by now. An earlier mapping stays: handles and hanging calls may still point into it. */
static int attach(void) {
  static char attached[4096];
  const char *path = getenv("GRIDCHASE_NVML_STUB");
  struct stat info;
  if (here && path && !strcmp(path, attached)) return OK;
  int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (file < 0) return DRIVER_NOT_LOADED;
  int is_whole = !fstat(file, &info) && info.st_size == (off_t)sizeof(struct machine);
  void *mapped = is_whole ? mmap(NULL, sizeof(struct machine), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  close(file);
  if (mapped == MAP_FAILED) return LIB_RM_VERSION_MISMATCH;
  struct machine *machine = mapped;
  if (machine->magic != MAGIC || machine->layout != LAYOUT || machine->size != sizeof(struct machine))
    return LIB_RM_VERSION_MISMATCH;
  here = machine;
  snprintf(attached, sizeof attached, "%s", path);
  return OK;
}

static int initialise(int entry) {
  pthread_mutex_lock(&init_lock);
  int code = attach();
  if (!code) code = enter(&here->hooks, entry);
  if (!code) n_inits++;
  pthread_mutex_unlock(&init_lock);
  return code;
}

API int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  return initialise(E_nvmlInitWithFlags);
}

API int nvmlInit_v2(void) { return initialise(E_nvmlInit_v2); }

API int nvmlShutdown(void) {
  ENTER_SYSTEM(nvmlShutdown);
  pthread_mutex_lock(&init_lock);
  n_inits--;
  pthread_mutex_unlock(&init_lock);
  return OK;
}

API const char *nvmlErrorString(int code) {
  static __thread char text[48];
  snprintf(text, sizeof text, "stub error %d", code);
  return text;
}

#define SYSTEM_TEXT(name, field) \
  API int name(char *buffer, unsigned length) { \
    ENTER_SYSTEM(name); \
    return put_text(here->field, buffer, length); \
  }
SYSTEM_TEXT(nvmlSystemGetDriverVersion, driver_version)
SYSTEM_TEXT(nvmlSystemGetNVMLVersion, nvml_version)

API int nvmlDeviceGetCount_v2(unsigned *count) {
  ENTER_SYSTEM(nvmlDeviceGetCount_v2);
  *count = here->n_gpus;
  return OK;
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
  if (!n_inits) return UNINITIALIZED;
  if (index >= here->n_gpus) return INVALID_ARGUMENT;
  ENTER_GPU(nvmlDeviceGetHandleByIndex_v2, &here->gpus[index]);
  *device = &here->gpus[index];
  return OK;
}

#define GPU_TEXT(name, field) \
  API int name(nvmlDevice_t gpu, char *buffer, unsigned length) { \
    ENTER_GPU(name, gpu); \
    return put_text(gpu->field, buffer, length); \
  }
GPU_TEXT(nvmlDeviceGetUUID, uuid)
GPU_TEXT(nvmlDeviceGetName, name)

#define GPU_NUMBER(name, value) \
  API int name(nvmlDevice_t gpu, unsigned *number) { \
    ENTER_GPU(name, gpu); \
    *number = (value); \
    return OK; \
  }
GPU_NUMBER(nvmlDeviceGetIndex, gpu->index)
GPU_NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, gpu->default_mw)
GPU_NUMBER(nvmlDeviceGetPowerManagementLimit, current(gpu, readback_mw))
GPU_NUMBER(nvmlDeviceGetEnforcedPowerLimit, current(gpu, enforced_mw))
GPU_NUMBER(nvmlDeviceGetPowerUsage, current(gpu, told_power_mw))
GPU_NUMBER(nvmlDeviceGetPersistenceMode, gpu->is_persistent != 0)
GPU_NUMBER(nvmlDeviceGetArchitecture, ARCH_AMPERE)

API int nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t gpu, unsigned *min_mw, unsigned *max_mw) {
  ENTER_GPU(nvmlDeviceGetPowerManagementLimitConstraints, gpu);
  *min_mw = gpu->min_mw;
  *max_mw = gpu->max_mw;
  return OK;
}

/* Carry out an accepted write, as faulty as the tests want it; with the lock held. */
static void carry_out(struct gpu *gpu, uint32_t limit_mw) {
  struct write_faults *faults = &gpu->faults;
  gpu->writes[gpu->n_writes++ % MAX_WRITES] = (struct write){now_ns(), (uint32_t)getpid(), limit_mw};
  if (faults->n_ignored) {
    if (faults->n_ignored != UINT32_MAX) faults->n_ignored--;
    return;
  }
  if (faults->min_mw && limit_mw < faults->min_mw) limit_mw = faults->min_mw;
  if (faults->max_mw && limit_mw > faults->max_mw) limit_mw = faults->max_mw;
  gpu->former_mw = readback_mw(gpu);
  gpu->former_until_ns = now_ns() + faults->readback_delay_ms * 1000000ull;
  gpu->pending_mw = limit_mw;
  gpu->pending_ns = now_ns() + faults->delay_ms * 1000000ull;
  settle(gpu);
}

API int nvmlDeviceSetPowerManagementLimit(nvmlDevice_t gpu, unsigned limit_mw) {
  ENTER_GPU(nvmlDeviceSetPowerManagementLimit, gpu);
  if (!gpu->is_writable) return NO_PERMISSION;
  if (limit_mw < gpu->min_mw || limit_mw > gpu->max_mw) return INVALID_ARGUMENT;
  lock(machine_of(gpu));
  settle(gpu);
  carry_out(gpu, limit_mw);
  unlock(machine_of(gpu));
  return OK;
}

API int nvmlDeviceSetPersistenceMode(nvmlDevice_t gpu, unsigned mode) {
  ENTER_GPU(nvmlDeviceSetPersistenceMode, gpu);
  if (!gpu->is_writable) return NO_PERMISSION;
  gpu->is_persistent = mode != 0;
  return OK;
}

API int nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t gpu, unsigned long long *millijoules) {
  ENTER_GPU(nvmlDeviceGetTotalEnergyConsumption, gpu);
  if (!gpu->has_energy_counter) return NOT_SUPPORTED;
  *millijoules = visible_energy_mj(gpu);
  return OK;
}

/* Field ids of nvml.h: 83 energy; 185 mean and 186 instant power; 187–190, 192 the limits. Scope 0 is the GPU. */
static int put_field(struct gpu *gpu, nvmlFieldValue_t *field) {
  int is_power_field = field->field >= 185 && field->field <= 192;
  if (field->scope || (is_power_field && !gpu->has_power_fields)) return NOT_SUPPORTED;
  field->type = 1; /* unsigned int */
  switch (field->field) {
    case 83:
      if (!gpu->has_energy_counter) return NOT_SUPPORTED;
      field->type = 3; /* unsigned long long */
      field->value.u64 = visible_energy_mj(gpu);
      return OK;
    case 185: case 186: field->value.u32 = current(gpu, told_power_mw); return OK;
    case 187: field->value.u32 = gpu->min_mw; return OK;
    case 188: field->value.u32 = gpu->max_mw; return OK;
    case 189: field->value.u32 = gpu->default_mw; return OK;
    case 190: field->value.u32 = current(gpu, enforced_mw); return OK;
    case 192: field->value.u32 = current(gpu, readback_mw); return OK;
    default: return NOT_SUPPORTED;
  }
}

API int nvmlDeviceGetFieldValues(nvmlDevice_t gpu, int count, nvmlFieldValue_t *fields) {
  ENTER_GPU(nvmlDeviceGetFieldValues, gpu);
  for (int i = 0; i < count; i++) fields[i].code = put_field(gpu, &fields[i]);
  return OK;
}

API int nvmlDeviceGetUtilizationRates(nvmlDevice_t gpu, nvmlUtilization_t *percent) {
  ENTER_GPU(nvmlDeviceGetUtilizationRates, gpu);
  if (gpu->mig_mode == 2) return NOT_SUPPORTED;
  *percent = (nvmlUtilization_t){gpu->is_busy ? 98 : 0, gpu->is_busy ? 50 : 0};
  return OK;
}

API int nvmlDeviceGetTemperature(nvmlDevice_t gpu, unsigned sensor, unsigned *celsius) {
  ENTER_GPU(nvmlDeviceGetTemperature, gpu);
  if (sensor) return INVALID_ARGUMENT;
  *celsius = gpu->temperature_c;
  return OK;
}

API int nvmlDeviceGetTemperatureV(nvmlDevice_t gpu, nvmlTemperature_t *temperature) {
  ENTER_GPU(nvmlDeviceGetTemperatureV, gpu);
  if (temperature->sensor) return INVALID_ARGUMENT;
  temperature->celsius = (int32_t)gpu->temperature_c;
  return OK;
}

/* Driver 535.54 writes entries that are 8 bytes longer than its header says. */
static int put_processes(const struct gpu *gpu, unsigned *count, nvmlProcessInfo_t *processes, int is_wide) {
  unsigned room = *count;
  size_t stride = sizeof *processes + (is_wide ? sizeof(uint64_t) : 0);
  *count = gpu->n_pids;
  if (gpu->n_pids > room) return INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < gpu->n_pids; i++) {
    nvmlProcessInfo_t process = {gpu->pids[i], 1u << 30, UINT32_MAX, UINT32_MAX};
    memset((char *)processes + i * stride, 0, stride);
    memcpy((char *)processes + i * stride, &process, sizeof process);
  }
  return OK;
}

API int nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t gpu, unsigned *count, nvmlProcessInfo_t *processes) {
  ENTER_GPU(nvmlDeviceGetComputeRunningProcesses_v3, gpu);
  return put_processes(gpu, count, processes, (int)gpu->has_wide_processes);
}

API int nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t gpu, unsigned *count, nvmlProcessInfo_t *processes) {
  ENTER_GPU(nvmlDeviceGetComputeRunningProcesses_v2, gpu);
  return put_processes(gpu, count, processes, 0);
}

API int nvmlDeviceGetMigMode(nvmlDevice_t gpu, unsigned *current, unsigned *pending) {
  ENTER_GPU(nvmlDeviceGetMigMode, gpu);
  if (!gpu->mig_mode) return NOT_SUPPORTED;
  *current = *pending = gpu->mig_mode == 2;
  return OK;
}

/* The tests' door. */

API uint32_t stub_layout_bytes(void) { return sizeof(struct machine); }

API const char *stub_entry_point(uint32_t entry) { return entry < N_ENTRIES ? ENTRY_NAMES[entry] : NULL; }

/* Make a machine whose GPUs are filled in usable: the lock, the clocks of the counters, and at last the header. */
API void stub_prepare(struct machine *machine) {
  pthread_mutexattr_t kind;
  pthread_mutexattr_init(&kind);
  pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&machine->lock.mutex, &kind);
  for (uint32_t i = 0; i < machine->n_gpus; i++) machine->gpus[i].settled_ns = now_ns();
  machine->size = sizeof(struct machine);
  machine->layout = LAYOUT;
  machine->magic = MAGIC;
}

#define CHANGE(machine, index, statement) \
  do { \
    struct gpu *gpu = &(machine)->gpus[index]; \
    lock(machine); \
    settle(gpu); \
    statement; \
    unlock(machine); \
  } while (0)

API void stub_set_requested(struct machine *machine, uint32_t index, uint32_t limit_mw) {
  CHANGE(machine, index, gpu->requested_mw = limit_mw; gpu->pending_mw = 0; gpu->former_until_ns = 0);
}

/* Load the driver anew: limits are at their default, and the counter of energy starts again. */
API void stub_reload(struct machine *machine, uint32_t index) {
  CHANGE(machine, index, gpu->requested_mw = gpu->default_mw; gpu->pending_mw = 0; gpu->former_until_ns = 0;
         gpu->external_mw = 0; gpu->energy_mj = gpu->visible_energy_mj = 0.0);
}

API void stub_reset_energy(struct machine *machine, uint32_t index) {
  CHANGE(machine, index, gpu->energy_mj = gpu->visible_energy_mj = 0.0);
}

API void stub_set_external(struct machine *machine, uint32_t index, uint32_t limit_mw) {
  CHANGE(machine, index, gpu->external_mw = limit_mw);
}

API void stub_set_busy(struct machine *machine, uint32_t index, uint32_t is_busy) {
  CHANGE(machine, index, gpu->is_busy = is_busy);
}

API uint32_t stub_power_mw(struct machine *machine, uint32_t index) { return current(&machine->gpus[index], power_mw); }

API uint32_t stub_requested_mw(struct machine *machine, uint32_t index) {
  return current(&machine->gpus[index], requested_mw);
}

API uint32_t stub_enforced_mw(struct machine *machine, uint32_t index) {
  return current(&machine->gpus[index], enforced_mw);
}

API uint64_t stub_iteration_ns(struct machine *machine, uint32_t index) {
  struct gpu *gpu = &machine->gpus[index];
  lock(machine);
  settle(gpu);
  uint64_t iteration_ns = operating_point(gpu).iteration_ns;
  unlock(machine);
  return iteration_ns;
}
