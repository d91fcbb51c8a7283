/*
 * kvlane: a store of KV cache within the process of an inference engine.
 *
 * The order of use: kvl_open, kvl_register_cache; for each request kvl_hash_tokens (or hashes of the engine's own) and
 * kvl_keys, kvl_lease_blocks, kvl_load_blocks, kvl_wait, kvl_release, then kvl_dump_blocks for the blocks that were missing;
 * kvl_close_cache, kvl_close.
 *
 * Every function may be called from any thread, concurrently. Functions that return kvl_status return KVL_OK, or say why not:
 * kvl_error then has the words, for the calling thread. Only functions with a timeout wait, and kvl_open, which opens files and
 * a device; kvl_load_blocks may call the device's driver, which takes as long as it does. What is pointed to is not used after
 * the call; the KV cache that was registered is. NULL is KVL_INVALID where nothing else is said, unless it is an array of no
 * elements.
 *
 * Handles are numbers, never 0, and never used twice. A handle that was freed is an error, not undefined behaviour: KVL_CLOSED
 * for an engine, cache, memory, stream or manager that was closed, KVL_EXPIRED for a lease, KVL_INVALID for a task or job.
 *
 * After fork() the child cannot use the library, as its threads are not there: every function that returns kvl_status returns
 * KVL_FORKED, at once. So load it where it is used, after a fork or in a process that was started anew (exec, Python's
 * "spawn"). The library is never to be unloaded (dlclose).
 */
#ifndef KVLANE_H
#define KVLANE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* KVL_ABI changes when something here does in a way that old callers would not survive. Compare it with kvl_abi(). */
#define KVL_ABI 3
#define KVL_VERSION "0.1.0"

typedef enum kvl_status {
  KVL_OK = 0,
  KVL_PENDING = 1,        /* the timeout passed; the same call may be made again */
  KVL_INVALID = -1,       /* wrong arguments: the same call will fail again */
  KVL_NOT_FOUND = -2,     /* a miss */
  KVL_EXISTS = -3,        /* is there already, or somebody is making it */
  KVL_NOT_SUPPORTED = -4, /* the machine, driver or build lacks what the call needs */
  KVL_BUSY = -5,          /* a bounded resource is used up for now */
  KVL_NO_MEMORY = -6,
  KVL_NO_SPACE = -7, /* a storage tier is full */
  KVL_READ_ONLY = -8,
  KVL_CORRUPT = -9,   /* stored bytes failed their check: a miss, and the page is undefined if kvl_results says so */
  KVL_MISMATCH = -10, /* of another model, layout or format */
  KVL_CANCELED = -11,
  KVL_EXPIRED = -12, /* a lease expired or was released before the call */
  KVL_CLOSED = -13,
  KVL_BROKEN = -14, /* an earlier failure stopped this */
  KVL_FORKED = -15, /* called in a child of fork() */
  KVL_FAILED = -16  /* anything else: see kvl_error */
} kvl_status;

typedef uint64_t kvl_engine; /* a device with a store over it */
typedef uint64_t kvl_cache;  /* a paged KV cache that an engine was told of */
typedef uint64_t kvl_lease;  /* blocks that stay where they are */
typedef uint64_t kvl_task;   /* a load, a dump, a prefetch or a copy */

#define KVL_KEY_BYTES 32
#define KVL_HASH_BYTES 32

/* A timeout in milliseconds: 0 looks and does not wait, KVL_FOREVER waits without an end. */
#define KVL_FOREVER (-1)

/* kvl_abi returns KVL_ABI of the library, kvl_version its KVL_VERSION. Both work after fork() too. */
int kvl_abi(void);
const char *kvl_version(void);

/*
 * kvl_error returns why the last call of this thread that returned no KVL_OK did not: one line, what and what to do. Empty if
 * there was none. The text stays until the thread's next such call.
 */
const char *kvl_error(void);

/* kvl_status_name returns "KVL_OK" and so on; "unknown status" for other numbers. Works after fork() too. */
const char *kvl_status_name(kvl_status status);

/*
 * kvl_open opens a device and a store over it. `config` is a JSON object in UTF-8, described in docs/library.md.
 * KVL_INVALID for an unknown key, a key given twice and text that is not UTF-8. One error lists the mistakes; a value of a
 * wrong type can hide further ones.
 */
kvl_status kvl_open(const char *config, kvl_engine *engine);

/*
 * kvl_read_config writes `config` with the settings of the file that its key "config" names, as kvl_open uses them, to a
 * buffer as kvl_stats does. Other keys are not checked.
 */
kvl_status kvl_read_config(const char *config, char *buffer, size_t *bytes);

/*
 * kvl_close writes what is still to be written, until the timeout, and gives the rest up; then it closes everything. KVL_BUSY
 * or KVL_PENDING: something is still in use, nothing that it needs was freed, and the call may be made again; kvl_error names
 * it. After any other failure too: call it until KVL_OK. Then the handles of the engine, and of its caches, leases and tasks, are
 * gone.
 */
kvl_status kvl_close(kvl_engine engine, int64_t timeout_ms);

/* One page group's part of a paged KV cache. Page p of plane i lies at planes[i] + p * stride, and is page_bytes long. */
typedef struct kvl_group_memory {
  const uint64_t *planes; /* addresses on the engine's device of page 0 of each plane: layer by layer, K before V */
  size_t n_planes;        /* or a multiple, as many for each layer: a page's K and V in equal parts, such as heads */
  int64_t n_pages;    /* of each plane */
  int64_t page_bytes; /* of a page in one plane; 0: as the configuration has it */
  int64_t stride;     /* from page to page; 0: page_bytes */
} kvl_group_memory;

/*
 * kvl_register_cache tells the engine where the KV cache lies: one entry for each page group of the configuration. The memory
 * must stay until kvl_close_cache, or kvl_close of the engine, has returned KVL_OK. After a failure it may be freed, unless
 * kvl_error says that it must stay until the engine is closed.
 */
kvl_status kvl_register_cache(kvl_engine engine, const kvl_group_memory *groups, size_t n_groups, kvl_cache *cache);

/*
 * kvl_close_cache refuses further transfers of the cache, and waits for those under way. KVL_PENDING: some still touch it, and
 * the call may be made again. The handle is gone once it has returned KVL_OK.
 */
kvl_status kvl_close_cache(kvl_cache cache, int64_t timeout_ms);

/*
 * kvl_hash_tokens hashes a prompt's whole blocks of block_tokens tokens, each chained to those before it: hash i stands for
 * tokens 0 .. (i+1)*block_tokens-1. It is the same in every process and on every machine. parent, KVL_HASH_BYTES or NULL, is
 * the hash of the block before the first token. Writes n_tokens / block_tokens hashes of KVL_HASH_BYTES each.
 */
kvl_status kvl_hash_tokens(const uint8_t *parent, const int64_t *tokens, size_t n_tokens, size_t block_tokens, uint8_t *hashes);

/*
 * kvl_keys makes the keys of blocks of a page group from n hashes of hash_bytes each, of kvl_hash_tokens or of the engine's
 * own. A key stands for the hash and for everything that the configuration says of the model. Writes n * KVL_KEY_BYTES.
 */
kvl_status kvl_keys(kvl_engine engine, uint32_t group, const uint8_t *hashes, size_t hash_bytes, size_t n, uint8_t *keys);

#define KVL_IN_MEMORY 1u
#define KVL_IN_FILES 2u

/*
 * kvl_lookup writes for each of n keys where its block is, or 0. Nothing keeps it there: kvl_lease_blocks does. The
 * timeout is for tiers that are slow to answer; with 0 it takes as long as one look does.
 */
kvl_status kvl_lookup(kvl_engine engine, const uint8_t *keys, size_t n, uint8_t *there, int64_t timeout_ms);

/*
 * kvl_lease_blocks finds the longest prefix of the keys whose blocks are all there, writes its length to found, and keeps them
 * there until kvl_release, or for ttl_ms (0: the longest that the configuration allows). The lease of no block is a lease too.
 * The timeout is that of kvl_lookup.
 */
kvl_status kvl_lease_blocks(kvl_engine engine, const uint8_t *keys, size_t n, int64_t ttl_ms, int64_t timeout_ms,
                            kvl_lease *lease, size_t *found);

/*
 * kvl_worth writes how many of a lease's blocks, from the first on, are worth loading, as that is faster than computing them
 * again. tokens is how many need not be computed where all of them are loaded. It goes by what loads have taken so far, from
 * memory and from files, and by kvl_report_computed: that the KV of so many tokens was computed in that time (few tokens, less
 * than 256, are passed over). Until each is known from some of them, all blocks are worth it. Where files are refused a few
 * blocks are brought to memory now and then, so that it is seen when that has become faster.
 */
kvl_status kvl_worth(kvl_lease lease, int64_t tokens, size_t *worth);
kvl_status kvl_report_computed(kvl_engine engine, int64_t tokens, double seconds);

/* kvl_release ends a lease and frees its handle. Loads under way keep their blocks. */
kvl_status kvl_release(kvl_lease lease);

#define KVL_LAYERWISE 1u /* a load brings layer 0 first, for KVL_LAYER; a dump reads a layer once kvl_submit_layer was called */
#define KVL_AWAITED 2u   /* CUDA streams will wait for the load: kvl_stream_wait */

/* The work that a task has to wait for: what has been enqueued so far on a CUDA stream. */
typedef struct kvl_after {
  uint64_t stream; /* a CUstream or cudaStream_t; 0 is the default stream */
} kvl_after;

/*
 * kvl_load_blocks copies block keys[i] to page pages[i] of the cache, for n blocks, verified. The lease, or 0, holds them all.
 * before: the key of the block before keys[0] in its prompt, or NULL. Not needed with a lease.
 * after: NULL, or the work that still touches the pages, which the copies come after; without it, pages that such work writes
 * are not the blocks. The pages are not to be touched until the task is done, or a layer of them until KVL_LAYER of its number
 * is. KVL_BUSY, of this and the next two: too many tasks are under way (store.tasks), so wait for one.
 */
kvl_status kvl_load_blocks(kvl_engine engine, kvl_lease lease, kvl_cache cache, const uint8_t *keys, const uint32_t *pages,
                           size_t n, const uint8_t *before, uint32_t flags, const kvl_after *after, kvl_task *task);

/*
 * kvl_dump_blocks stores block keys[i] from page pages[i] of the cache. The pages are not to be changed until KVL_SOURCE_FREE.
 * The keys are in the order of a prompt, of all page groups by their tokens: the last is evicted first. before: NULL, or the
 * key of the block before keys[0], where a prompt is stored in pieces.
 * after: NULL, or the work that writes the pages; the copies wait for it on the device.
 */
kvl_status kvl_dump_blocks(kvl_engine engine, kvl_cache cache, const uint8_t *keys, const uint32_t *pages, size_t n,
                           const uint8_t *before, uint32_t flags, const kvl_after *after, kvl_task *task);

/* kvl_prefetch brings blocks into memory, so that a later load finds them there. */
kvl_status kvl_prefetch(kvl_engine engine, const uint8_t *keys, size_t n, kvl_task *task);

/*
 * kvl_submit_layer says that a layer of a layerwise dump may be read, once `after`, or NULL, is done. Each layer once, in any
 * order.
 */
kvl_status kvl_submit_layer(kvl_task task, uint32_t layer, const kvl_after *after);

/* What a task is waited for. */
#define KVL_DONE (-1)        /* a load or prefetch: ended; a dump: durable. Returns the first block's error, if any failed */
#define KVL_SOURCE_FREE (-2) /* a dump: its pages may be changed */
#define KVL_PUBLISHED (-3)   /* a dump: lookups find its blocks */
#define KVL_LAYER(k) (k)     /* a layerwise load: layers 0 to k are on every page that gets them */

/* kvl_wait waits until the task has come as far as `what`. KVL_PENDING: it has not within the timeout. Poll with 0. */
kvl_status kvl_wait(kvl_task task, int32_t what, int64_t timeout_ms);

/* What became of a block. */
typedef struct kvl_result {
  int32_t status;     /* a kvl_status */
  uint32_t undefined; /* 1: a load may have written to the page, which is not the block: write it anew before anybody reads it */
} kvl_result;

/* kvl_results writes a result for each of the task's n blocks. KVL_PENDING before the task has ended. */
kvl_status kvl_results(kvl_task task, kvl_result *results, size_t n);

/* kvl_cancel asks a task to do no more; it ends when the hardware has stopped. Does not wait. */
kvl_status kvl_cancel(kvl_task task);

/* kvl_free frees a task's handle. The task itself goes on. */
kvl_status kvl_free(kvl_task task);

/*
 * kvl_stream_wait makes a CUDA stream wait until a load that is KVL_AWAITED has ended (KVL_DONE) or has brought a layer
 * (KVL_LAYER). It waits on the device, not here, and goes on after failures too, and without the load after store.wait_max_ms:
 * then its blocks are KVL_EXPIRED, whatever comes later. Read kvl_wait before what was computed is used.
 */
kvl_status kvl_stream_wait(kvl_engine engine, uint64_t stream, kvl_task task, int32_t what);

/*
 * Copies that are no blocks: between the device's memory and the program's, or within either, by the paths that loads take.
 */
typedef uint64_t kvl_memory; /* memory that streams may copy from and to */
typedef uint64_t kvl_stream; /* copies, begun in the order in which they were given */

#define KVL_HOST 0u   /* the program's own, not pinned yet: it is, until kvl_unregister_memory */
#define KVL_DEVICE 1u /* of the engine's device */

/*
 * kvl_register_memory names memory, which must stay until kvl_unregister_memory, or kvl_close of the engine, has returned
 * KVL_OK. It takes milliseconds. After a failure the memory may be freed, unless kvl_error says that it must stay until the
 * engine is closed: NICs or the driver have failed to let go of it again. kvl_unregister_memory waits for copies under way:
 * after KVL_PENDING it may be called again.
 */
kvl_status kvl_register_memory(kvl_engine engine, uint64_t address, uint64_t bytes, uint32_t kind, kvl_memory *memory);
kvl_status kvl_unregister_memory(kvl_memory memory, int64_t timeout_ms);

/* kvl_open_stream opens a stream as those of loads are; kvl_close_stream cancels what has not begun, and waits for the rest. */
kvl_status kvl_open_stream(kvl_engine engine, kvl_stream *stream);
kvl_status kvl_close_stream(kvl_stream stream, int64_t timeout_ms);

/*
 * kvl_copy copies bytes[i] bytes from from_at[i] in one memory to to_at[i] in another, or the same one, for n pieces, none of
 * which it writes to may overlap any other. after: as of kvl_dump_blocks. The task is waited for by KVL_DONE. The timeout is for
 * a place in the stream: KVL_BUSY where it stays full. With 0 it takes a millisecond at most.
 */
kvl_status kvl_copy(kvl_stream stream, kvl_memory to, const uint64_t *to_at, kvl_memory from, const uint64_t *from_at,
                    const uint64_t *bytes, size_t n, const kvl_after *after, int64_t timeout_ms, kvl_task *task);

/*
 * Device memory that other processes can import, by the best type of handle that works here: fabric, a file descriptor, or CUDA
 * IPC. Whoever exports it asks CUDA for the handle. kvl_open_allocator finds out which type that is for a device of the driver
 * "cuda", and says why none is; "sim" is for tests, whose memory nobody can touch. Where it was not called, kvl_torch_alloc
 * does it for "cuda".
 *
 * kvl_torch_alloc and kvl_torch_free have the form that torch.cuda.memory.CUDAPluggableAllocator takes: a stream is a
 * cudaStream_t, and zero the default stream. kvl_torch_alloc returns NULL for no bytes and where it fails, and kvl_error says
 * why. kvl_torch_free waits until what is enqueued on the stream is done, for a minute at most: memory that the device may
 * still use stays allocated. kvl_allocator_stats writes JSON as kvl_stats does: Handle, Allocations, Bytes, Kept.
 */
kvl_status kvl_open_allocator(const char *driver, int32_t device);
void *kvl_torch_alloc(ssize_t size, int device, void *stream);
void kvl_torch_free(void *ptr, ssize_t size, int device, void *stream);
kvl_status kvl_allocator_stats(int32_t device, char *buffer, size_t *bytes);

/*
 * kvl_stats and kvl_notes write JSON, ended by a zero byte, to a buffer of *bytes, and the length that it takes, with the zero,
 * to *bytes; KVL_NO_SPACE where the buffer is too small. Notes are an array of what the user should know of how the engine was
 * opened: fallbacks, and why. Figures are described in docs/library.md.
 */
kvl_status kvl_stats(kvl_engine engine, char *buffer, size_t *bytes);
kvl_status kvl_notes(kvl_engine engine, char *buffer, size_t *bytes);

/*
 * kvl_metrics writes the metrics of an engine or a manager in Prometheus's text format, to a buffer as kvl_stats does. It is
 * for a program that serves metrics itself; the key metrics_addr of a configuration makes the library serve them.
 */
kvl_status kvl_metrics(uint64_t engine_or_manager, char *buffer, size_t *bytes);

/* kvl_report_slowdown tells by how many percent the program's own work takes longer than without copies beside it. */
kvl_status kvl_report_slowdown(kvl_engine engine, double percent);

/*
 * An engine whose scheduler and workers are processes of their own has a manager in the scheduler, which knows what the stores
 * of all workers have and needs no device, and in each worker a kvl_engine. The scheduler's jobs, as names of blocks, travel
 * to the workers by the engine's own means, and are carried out in the order in which they were made; what became of them
 * travels back.
 */
typedef uint64_t kvl_manager;
typedef uint64_t kvl_job; /* what all workers do for some blocks */

/* Names of n blocks: of page groups[i], or of the first page group where groups is NULL, with n hashes of hash_bytes each. */
typedef struct kvl_blocks {
  const uint32_t *groups;
  const uint8_t *hashes;
  size_t hash_bytes;
  size_t n;
} kvl_blocks;

/*
 * kvl_open_manager opens a manager, as `config` says: {"ranks": [what each worker gives to kvl_open], "blocks": n}. Workers
 * whose blocks are the same, in the same directories, may be named once. "blocks" is how many each worker's cache may be given,
 * at most as many as fit in the smallest; left out, as many, but for a sixteenth that is on its way to files.
 */
kvl_status kvl_open_manager(const char *config, kvl_manager *manager);

/* kvl_close_manager refuses new jobs, and closes. KVL_BUSY, KVL_PENDING: jobs have not ended, and the call may be made again. */
kvl_status kvl_close_manager(kvl_manager manager, int64_t timeout_ms);

#define KVL_ABSENT 0u
#define KVL_UNDER_WAY 1u /* a job that has not ended stores it, or brings it from files */
#define KVL_THERE 2u     /* every worker has it in memory */
#define KVL_BELOW 3u     /* it is there, but in files and not in every worker's memory */

/*
 * kvl_manager_lookup writes where each block stands. Nothing keeps it there: kvl_manager_load does. KVL_BUSY: files have not
 * answered in a second, or since; what is in memory was written all the same, and what may be in files is KVL_ABSENT.
 */
kvl_status kvl_manager_lookup(kvl_manager manager, const kvl_blocks *blocks, uint8_t *states);

/*
 * kvl_manager_worth writes how many of the blocks, of one page group and from the first on, are worth loading, as that is
 * faster than computing them again; the others are to be taken for misses. states is what kvl_manager_lookup wrote, and tokens
 * how many need not be computed where all are loaded. It goes by what jobs have taken, from kvl_manager_load to kvl_job_end,
 * and by kvl_manager_computed, as kvl_worth does: that the KV of so many tokens was computed in that time.
 */
kvl_status kvl_manager_worth(kvl_manager manager, const kvl_blocks *blocks, const uint8_t *states, int64_t tokens,
                             size_t *worth);
kvl_status kvl_manager_computed(kvl_manager manager, int64_t tokens, double seconds);

/*
 * kvl_manager_load pins blocks, all of which are KVL_THERE or KVL_BELOW, for workers to load: each gives their keys to
 * kvl_load_blocks. KVL_NOT_FOUND, KVL_BUSY: one is not there, is under way, or has no room; then nothing is pinned.
 */
kvl_status kvl_manager_load(kvl_manager manager, const kvl_blocks *blocks, kvl_job *job);

/*
 * kvl_manager_store makes room for those of the blocks that are neither in memory nor under way, and writes 1 to chosen for
 * each, else 0: each worker gives the keys of the chosen ones to kvl_dump_blocks. KVL_BUSY: there is no room. The blocks are
 * in the order of a prompt: the last is evicted first. before: NULL, or the block before the first.
 */
kvl_status kvl_manager_store(kvl_manager manager, const kvl_blocks *blocks, const kvl_blocks *before, uint8_t *chosen,
                             kvl_job *job);

/* kvl_job_size writes how many blocks a job is about, and how many others every worker drops first: kvl_job_evicted, kvl_drop. */
kvl_status kvl_job_size(kvl_job job, size_t *blocks, size_t *evicted);

/* kvl_job_evicted writes the names of the blocks that workers drop before they begin the job: all n of kvl_job_size. */
kvl_status kvl_job_evicted(kvl_job job, uint32_t *groups, uint8_t *hashes, size_t hash_bytes, size_t n);

/*
 * kvl_job_end says that every worker is through with a job, and frees its handle. failed is NULL, or not 0 for each of the job's
 * n blocks that some worker could not store or load: these are forgotten, and may be stored anew.
 */
kvl_status kvl_job_end(kvl_job job, const uint8_t *failed, size_t n);

/*
 * kvl_manager_forget makes misses of blocks that a worker found wrong; kvl_manager_touch says that blocks are in use;
 * kvl_manager_reset forgets what is in the workers' memory and in no job. kvl_manager_stats is as kvl_stats.
 */
kvl_status kvl_manager_forget(kvl_manager manager, const kvl_blocks *blocks);
kvl_status kvl_manager_touch(kvl_manager manager, const kvl_blocks *blocks);
kvl_status kvl_manager_reset(kvl_manager manager);
kvl_status kvl_manager_stats(kvl_manager manager, char *buffer, size_t *bytes);

/*
 * kvl_drop takes blocks out of a worker's memory, and leaves files alone; it does not wait, and passes over blocks that are not
 * there. stay: how many stay for now, since something still uses them; they are evicted in their turn.
 */
kvl_status kvl_drop(kvl_engine engine, const uint8_t *keys, size_t n, size_t *stay);

#ifdef __cplusplus
}
#endif

#endif
