/*
 * kvlane: a store of KV cache within the process of an inference engine.
 *
 * The order of use: kvl_open, kvl_register_cache; for each request kvl_hash_tokens (or hashes of the engine's own) and
 * kvl_keys, kvl_lease_blocks, kvl_load_blocks, kvl_wait, kvl_release, then kvl_dump_blocks for the blocks that were missing;
 * kvl_close_cache, kvl_close.
 *
 * All functions may be called concurrently from any thread. Functions of type kvl_status return KVL_OK or an error;
 * kvl_error then returns the text of the calling thread's last error. Only functions with a timeout block, and kvl_open, which
 * opens files and a device. kvl_load_blocks may call the device's driver. Pointers are not used after the call, except for the
 * registered KV cache. A NULL pointer is KVL_INVALID unless documented otherwise, or unless the array has no elements.
 *
 * Handles are numbers. They are never 0 and never reused. Using a freed handle is an error, not undefined behaviour:
 * KVL_CLOSED for a closed engine, cache, memory, stream or manager, KVL_EXPIRED for a lease, KVL_INVALID for a task or job.
 *
 * A child of fork() cannot use the library, because the library's threads do not exist there: every function of type
 * kvl_status returns KVL_FORKED immediately. Load the library after the fork, or in a process started by exec (Python's
 * "spawn"). The library must not be unloaded (dlclose).
 */
#ifndef KVLANE_H
#define KVLANE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* KVL_ABI changes with every incompatible change of this header. Compare it with kvl_abi(). */
#define KVL_ABI 3
#define KVL_VERSION "0.1.0"

typedef enum kvl_status {
  KVL_OK = 0,
  KVL_PENDING = 1,        /* the timeout passed; the call may be repeated */
  KVL_INVALID = -1,       /* invalid arguments */
  KVL_NOT_FOUND = -2,     /* a miss */
  KVL_EXISTS = -3,        /* it exists, or is being created */
  KVL_NOT_SUPPORTED = -4, /* not supported by the machine, driver or build */
  KVL_BUSY = -5,          /* a bounded resource is in use; retry later */
  KVL_NO_MEMORY = -6,
  KVL_NO_SPACE = -7, /* a storage tier is full */
  KVL_READ_ONLY = -8,
  KVL_CORRUPT = -9,   /* stored bytes failed their check: a miss; kvl_results reports whether the page is undefined */
  KVL_MISMATCH = -10, /* it belongs to another model, layout or format */
  KVL_CANCELED = -11,
  KVL_EXPIRED = -12, /* a lease expired or was released before the call */
  KVL_CLOSED = -13,
  KVL_BROKEN = -14, /* stopped by an earlier failure */
  KVL_FORKED = -15, /* called in a child of fork() */
  KVL_FAILED = -16  /* any other error: see kvl_error */
} kvl_status;

typedef uint64_t kvl_engine; /* a device with a store */
typedef uint64_t kvl_cache;  /* a paged KV cache registered with an engine */
typedef uint64_t kvl_lease;  /* blocks that are not evicted */
typedef uint64_t kvl_task;   /* a load, a dump, a prefetch or a copy */

#define KVL_KEY_BYTES 32
#define KVL_HASH_BYTES 32

/* A timeout in milliseconds: 0 does not wait, KVL_FOREVER waits without a limit. */
#define KVL_FOREVER (-1)

/* kvl_abi returns the library's KVL_ABI, kvl_version its KVL_VERSION. Both also work after fork(). */
int kvl_abi(void);
const char *kvl_version(void);

/*
 * kvl_error returns the error text of the calling thread's last failed call: one line, with the remedy. It is empty before
 * the first failure, and valid until the thread's next failed call.
 */
const char *kvl_error(void);

/* kvl_status_name returns "KVL_OK" and so on, or "unknown status". It also works after fork(). */
const char *kvl_status_name(kvl_status status);

/*
 * kvl_open opens a device and its store. `config` is a JSON object in UTF-8, described in docs/library.md. It returns
 * KVL_INVALID for unknown and duplicate keys, and for text that is not UTF-8. The error lists all problems, but a value of a
 * wrong type can hide others. kvl_open, kvl_open_manager and kvl_read_config read the environment, which no thread may change
 * meanwhile.
 */
kvl_status kvl_open(const char *config, kvl_engine *engine);

/*
 * kvl_read_config writes the configuration that kvl_open would use to a buffer, as kvl_stats does: `config` merged with the
 * file of its key "config". Other keys are not checked.
 */
kvl_status kvl_read_config(const char *config, char *buffer, size_t *bytes);

/*
 * kvl_close completes pending writes until the timeout, cancels the others, and closes the engine. It returns KVL_BUSY or
 * KVL_PENDING if an object is still in use; kvl_error names the object, and nothing in use was freed. Repeat the call after
 * any error, until it returns KVL_OK. Then the handles of the engine, its caches, leases and tasks are invalid.
 */
kvl_status kvl_close(kvl_engine engine, int64_t timeout_ms);

/* One page group of a paged KV cache. Page p of plane i is at planes[i] + p * stride and has page_bytes bytes.
 * The configuration defines the number of planes of a layer. A layer may also have a multiple of it, the same for each layer: K
 * and V of a page are then split into equal parts, such as heads. */
typedef struct kvl_group_memory {
  const uint64_t *planes; /* device address of page 0 of each plane, by layer, K before V */
  size_t n_planes;
  int64_t n_pages;    /* number of pages */
  int64_t page_bytes; /* bytes of a page in one plane; 0: as in the configuration */
  int64_t stride;     /* distance between pages in bytes; 0: page_bytes */
} kvl_group_memory;

/*
 * kvl_register_cache registers the memory of the KV cache, one entry per page group of the configuration. The memory must
 * stay allocated until kvl_close_cache or kvl_close of the engine returns KVL_OK. After an error it may be freed, unless
 * kvl_error requires it to stay until the engine is closed.
 */
kvl_status kvl_register_cache(kvl_engine engine, const kvl_group_memory *groups, size_t n_groups, kvl_cache *cache);

/*
 * kvl_close_cache rejects new transfers of the cache and waits for those in progress. KVL_PENDING: transfers still use the
 * cache; repeat the call. The handle is invalid after KVL_OK.
 */
kvl_status kvl_close_cache(kvl_cache cache, int64_t timeout_ms);

/*
 * kvl_hash_tokens hashes the full blocks of a prompt, of block_tokens tokens each. Hash i covers tokens 0 to
 * (i+1)*block_tokens-1. Hashes are equal in all processes and on all machines. parent has KVL_HASH_BYTES and is the hash of
 * the block before the first token, or NULL. It writes n_tokens / block_tokens hashes of KVL_HASH_BYTES each.
 */
kvl_status kvl_hash_tokens(const uint8_t *parent, const int64_t *tokens, size_t n_tokens, size_t block_tokens, uint8_t *hashes);

/*
 * kvl_keys computes the keys of a page group's blocks from n hashes of hash_bytes each, of kvl_hash_tokens or the inference
 * engine. A key depends on the hash and on the model's part of the configuration. It writes n * KVL_KEY_BYTES.
 */
kvl_status kvl_keys(kvl_engine engine, uint32_t group, const uint8_t *hashes, size_t hash_bytes, size_t n, uint8_t *keys);

#define KVL_IN_MEMORY 1u
#define KVL_IN_FILES 2u

/*
 * kvl_lookup writes the location of the block of each of n keys, or 0. It does not protect blocks from eviction:
 * kvl_lease_blocks does. The timeout limits the wait for slow tiers; with 0 the call takes as long as one lookup.
 */
kvl_status kvl_lookup(kvl_engine engine, const uint8_t *keys, size_t n, uint8_t *there, int64_t timeout_ms);

/*
 * kvl_lease_blocks finds the longest prefix of the keys whose blocks are all stored and writes its length to found. The
 * blocks are not evicted until kvl_release, or for ttl_ms (0: the configuration's maximum). A prefix of length 0 also has a
 * lease. The timeout is that of kvl_lookup.
 */
kvl_status kvl_lease_blocks(kvl_engine engine, const uint8_t *keys, size_t n, int64_t ttl_ms, int64_t timeout_ms,
                            kvl_lease *lease, size_t *found);

/*
 * kvl_worth writes the number of a lease's blocks, from the first, that are faster to load than to compute. tokens is the
 * number of tokens that need no computation if all blocks are loaded. rest is the number of tokens that are computed in any
 * case at the same time: the other tokens of the request, and those of other requests. The decision uses the measured times
 * of loads from memory and files, and the times passed to kvl_report_computed: the time to compute the KV of that number of
 * tokens (less than 256 tokens give the least time of a step). Without enough samples of both, all blocks are worth loading.
 * If blocks in files are not worth loading, a few are prefetched occasionally, to detect when loads have become faster.
 */
kvl_status kvl_worth(kvl_lease lease, int64_t tokens, int64_t rest, size_t *worth);
kvl_status kvl_report_computed(kvl_engine engine, int64_t tokens, double seconds);

/*
 * kvl_report_delay reports the time from the decision to load blocks in memory to their use, less kvl_load_seconds. kvl_worth
 * adds it to each load. It may be 0.
 */
kvl_status kvl_report_delay(kvl_engine engine, double seconds);

/* kvl_release ends a lease and frees its handle. Loads in progress keep their blocks. */
kvl_status kvl_release(kvl_lease lease);

#define KVL_LAYERWISE 1u /* a load starts with layer 0, for KVL_LAYER; a dump reads a layer after its kvl_submit_layer */
#define KVL_AWAITED 2u   /* CUDA streams wait for the load: kvl_stream_wait */

/* With direct storage: the blocks of files that enter the cache. Without a flag: those that are requested again soon. */
#define KVL_PROMOTE 4u /* all */
#define KVL_BYPASS 8u  /* those that direct storage cannot read */

/* The dependency of a task: the work enqueued on a CUDA stream before the call. */
typedef struct kvl_after {
  uint64_t stream; /* a CUstream or cudaStream_t; 0 is the default stream */
} kvl_after;

/*
 * kvl_load_blocks copies block keys[i] to page pages[i] of the cache and verifies it, for n blocks. Do not use the pages until
 * the task is done, or a layer until its KVL_LAYER is done.
 * lease: a lease of all blocks, or 0.
 * before: the key of the block before keys[0] in its prompt, or NULL. Not needed with a lease.
 * after: NULL, or work that may still use the pages. The copies run after this work, which could otherwise overwrite the blocks.
 * kvl_load_blocks, kvl_dump_blocks and kvl_prefetch return KVL_BUSY if too many tasks are in progress (store.tasks). Wait for
 * one of them.
 */
kvl_status kvl_load_blocks(kvl_engine engine, kvl_lease lease, kvl_cache cache, const uint8_t *keys, const uint32_t *pages,
                           size_t n, const uint8_t *before, uint32_t flags, const kvl_after *after, kvl_task *task);

/*
 * kvl_dump_blocks stores block keys[i] from page pages[i] of the cache. Do not change the pages until KVL_SOURCE_FREE. Pass the
 * keys in the order of the prompt, those of all page groups sorted by their tokens. The last block is evicted first.
 * before: NULL, or the key of the block before keys[0], if a prompt is stored in pieces.
 * after: NULL, or the work that writes the pages; the copies wait for it on the device.
 */
kvl_status kvl_dump_blocks(kvl_engine engine, kvl_cache cache, const uint8_t *keys, const uint32_t *pages, size_t n,
                           const uint8_t *before, uint32_t flags, const kvl_after *after, kvl_task *task);

/* kvl_prefetch reads blocks into memory, for later loads. */
kvl_status kvl_prefetch(kvl_engine engine, const uint8_t *keys, size_t n, kvl_task *task);

/*
 * kvl_submit_layer lets a layerwise dump read a layer after the work of `after`, or immediately if it is NULL. Call it once
 * per layer, in any order.
 */
kvl_status kvl_submit_layer(kvl_task task, uint32_t layer, const kvl_after *after);

/* Conditions for kvl_wait. */
#define KVL_DONE (-1)        /* a load or prefetch ended; a dump is durable. Returns the error of the first failed block */
#define KVL_SOURCE_FREE (-2) /* the pages of a dump may be changed */
#define KVL_PUBLISHED (-3)   /* lookups find the blocks of a dump */
#define KVL_LAYER(k) (k)     /* layers 0 to k of a layerwise load are on their pages */

/* kvl_wait waits until the condition `what` holds for the task, or returns KVL_PENDING after the timeout. 0 polls. */
kvl_status kvl_wait(kvl_task task, int32_t what, int64_t timeout_ms);

/* The result of a block. */
typedef struct kvl_result {
  int32_t status;     /* a kvl_status */
  uint32_t undefined; /* 1: a failed load may have written to the page: compute it again before use */
} kvl_result;

/* kvl_results writes a result for each of the task's n blocks. KVL_PENDING: the task has not ended. */
kvl_status kvl_results(kvl_task task, kvl_result *results, size_t n);

/*
 * kvl_left_out writes JSON as kvl_stats does: an array with an object for each tier that did not store all blocks of a dump,
 * because it was full, failed or was gone: its name (tier), the number of these blocks (blocks), and the error of the first
 * (cause). These blocks are durable in another tier, or have failed if there is none.
 */
kvl_status kvl_left_out(kvl_task task, char *buffer, size_t *bytes);

/*
 * kvl_load_seconds writes the duration of a load that has ended, without its wait for kvl_after, and 0 for other tasks.
 * KVL_PENDING: the load has not ended.
 */
kvl_status kvl_load_seconds(kvl_task task, double *seconds);

/* kvl_cancel requests the cancellation of a task and does not wait. The task ends when the hardware has stopped. */
kvl_status kvl_cancel(kvl_task task);

/* kvl_free frees a task's handle. The task continues. */
kvl_status kvl_free(kvl_task task);

/*
 * kvl_stream_wait makes a CUDA stream wait until a KVL_AWAITED load has ended (KVL_DONE) or has loaded a layer (KVL_LAYER).
 * The wait is on the device; the call does not block. The stream also continues if the load fails, or after
 * store.wait_max_ms; in that case the load's blocks are KVL_EXPIRED. Check kvl_wait before using the computed results.
 */
kvl_status kvl_stream_wait(kvl_engine engine, uint64_t stream, kvl_task task, int32_t what);

/*
 * Copies of memory other than blocks: between device and host memory, or within either, by the same paths as loads.
 */
typedef uint64_t kvl_memory; /* registered memory of kvl_copy */
typedef uint64_t kvl_stream; /* a stream of copies, started in the order of submission */

#define KVL_HOST 0u   /* unpinned memory of the program; it is pinned until kvl_unregister_memory */
#define KVL_DEVICE 1u /* memory of the engine's device */

/*
 * kvl_register_memory registers memory for copies. It takes milliseconds. The memory must stay allocated until
 * kvl_unregister_memory or kvl_close of the engine returns KVL_OK. After an error it may be freed, unless kvl_error requires
 * it to stay until the engine is closed, because NICs or the driver failed to release it. kvl_unregister_memory waits for
 * copies in progress; repeat the call after KVL_PENDING.
 */
kvl_status kvl_register_memory(kvl_engine engine, uint64_t address, uint64_t bytes, uint32_t kind, kvl_memory *memory);
kvl_status kvl_unregister_memory(kvl_memory memory, int64_t timeout_ms);

/* kvl_open_stream opens a copy stream. kvl_close_stream cancels copies that have not started and waits for the others. */
kvl_status kvl_open_stream(kvl_engine engine, kvl_stream *stream);
kvl_status kvl_close_stream(kvl_stream stream, int64_t timeout_ms);

/*
 * kvl_copy copies n pieces: bytes[i] bytes from offset from_at[i] of one memory to offset to_at[i] of another, or the same. A
 * written piece must not overlap another piece. after: as for kvl_dump_blocks. Wait for the task with KVL_DONE. The timeout
 * limits the wait for space in the stream: KVL_BUSY if it stays full. With 0 the call does not wait for space.
 */
kvl_status kvl_copy(kvl_stream stream, kvl_memory to, const uint64_t *to_at, kvl_memory from, const uint64_t *from_at,
                    const uint64_t *bytes, size_t n, const kvl_after *after, int64_t timeout_ms, kvl_task *task);

/*
 * Device memory that other processes can import, by the best available type of handle: fabric, file descriptor or CUDA IPC.
 * The exporting program gets the handle from CUDA. kvl_open_allocator selects the type for a device of the driver "cuda", and
 * fails with the reason if no type works. The driver "sim" is for tests; its memory cannot be accessed. Without this
 * call, kvl_torch_alloc opens the allocator for "cuda".
 *
 * kvl_torch_alloc and kvl_torch_free have the signatures of torch.cuda.memory.CUDAPluggableAllocator. A stream is a
 * cudaStream_t; zero is the default stream. kvl_torch_alloc returns NULL for zero bytes and after an error, see kvl_error.
 * kvl_torch_free waits at most a minute for the work enqueued on the stream; memory that the device may still use stays
 * allocated. kvl_allocator_stats writes JSON as kvl_stats does: Handle, Allocations, Bytes, Kept.
 */
kvl_status kvl_open_allocator(const char *driver, int32_t device);
void *kvl_torch_alloc(ssize_t size, int device, void *stream);
void kvl_torch_free(void *ptr, ssize_t size, int device, void *stream);
kvl_status kvl_allocator_stats(int32_t device, char *buffer, size_t *bytes);

/*
 * kvl_stats and kvl_notes write JSON with a terminating zero byte to a buffer of *bytes. They set *bytes to the length of the
 * JSON, including the zero byte, and return KVL_NO_SPACE if the buffer is too small. Notes are an array of messages about the
 * opened engine, such as fallbacks and their reasons. docs/library.md documents the statistics.
 */
kvl_status kvl_stats(kvl_engine engine, char *buffer, size_t *bytes);
kvl_status kvl_notes(kvl_engine engine, char *buffer, size_t *bytes);

/*
 * kvl_metrics writes the metrics of an engine or a manager in Prometheus's text format to a buffer, as kvl_stats does. Use it
 * in a program that serves metrics itself. With the configuration key metrics_addr the library serves them.
 */
kvl_status kvl_metrics(uint64_t engine_or_manager, char *buffer, size_t *bytes);

/* kvl_report_slowdown reports how much concurrent copies slow down the program's own work, in percent of its time. */
kvl_status kvl_report_slowdown(kvl_engine engine, double percent);

/*
 * An inference engine with separate scheduler and worker processes has a manager in the scheduler and a kvl_engine in each
 * worker. The manager tracks the blocks of all workers' stores and needs no device. The inference engine sends the
 * scheduler's jobs, as names of blocks, to the workers, which execute them in the order of creation. It returns the results
 * to the scheduler.
 */
typedef uint64_t kvl_manager;
typedef uint64_t kvl_job; /* an operation of all workers on some blocks */

/* Names of n blocks: their page groups, or NULL for the first page group, and n hashes of hash_bytes each. */
typedef struct kvl_blocks {
  const uint32_t *groups;
  const uint8_t *hashes;
  size_t hash_bytes;
  size_t n;
} kvl_blocks;

/*
 * kvl_open_manager opens a manager. `config` is {"ranks": [the configuration of each worker's kvl_open], "blocks": n}. Workers
 * with the same blocks in the same directories may be given once. "blocks" limits the blocks in each worker's cache; the
 * maximum is the number of slots of the smallest cache. The default is fifteen sixteenths of that number: the rest is for blocks
 * that are being written to files. "direct": true means that all workers use direct storage. The manager may then create direct
 * jobs.
 */
kvl_status kvl_open_manager(const char *config, kvl_manager *manager);

/* kvl_close_manager rejects new jobs and closes the manager. KVL_BUSY, KVL_PENDING: jobs have not ended; repeat the call. */
kvl_status kvl_close_manager(kvl_manager manager, int64_t timeout_ms);

#define KVL_ABSENT 0u
#define KVL_UNDER_WAY 1u /* a job in progress stores it, or loads it from files */
#define KVL_THERE 2u     /* it is in every worker's memory */
#define KVL_BELOW 3u     /* it is in files, but not in every worker's memory */
#define KVL_REMOTE 4u    /* it is in block servers, but not in every worker's memory or files */

/*
 * kvl_manager_lookup writes the state of each block. It does not protect blocks from eviction: kvl_manager_load does.
 * KVL_BUSY: files or servers did not answer within a second, or have not answered since. The other states are still valid; blocks
 * that may be there are KVL_ABSENT. The first block is the first of a prompt, unless kvl_manager_set_anchors has set its anchor.
 */
kvl_status kvl_manager_lookup(kvl_manager manager, const kvl_blocks *blocks, uint8_t *states);

/*
 * kvl_manager_worth writes the number of blocks of one page group, from the first, that are faster to load than to compute.
 * Treat the others as misses. states are those of kvl_manager_lookup. tokens is the number of tokens that need no computation
 * if all blocks are loaded, and rest is as for kvl_worth. The decision uses the times of kvl_job_loaded and of
 * kvl_manager_computed: the time to compute the KV of that number of tokens.
 */
kvl_status kvl_manager_worth(kvl_manager manager, const kvl_blocks *blocks, const uint8_t *states, int64_t tokens,
                             int64_t rest, size_t *worth);
kvl_status kvl_manager_computed(kvl_manager manager, int64_t tokens, double seconds);

/*
 * kvl_manager_load pins blocks that are all KVL_THERE, KVL_BELOW or KVL_REMOTE. Each worker then passes their keys to
 * kvl_load_blocks. It returns KVL_NOT_FOUND if a block is absent, and KVL_BUSY if a block is KVL_UNDER_WAY or there is no space
 * for it. Then no block is pinned.
 */
kvl_status kvl_manager_load(kvl_manager manager, const kvl_blocks *blocks, kvl_job *job);

/*
 * kvl_manager_store reserves space for the blocks that are neither in memory nor KVL_UNDER_WAY. It sets chosen to 1 for
 * these, and to 0 for the others. Each worker then passes the keys of the chosen blocks to kvl_dump_blocks. KVL_BUSY: no
 * space is available. The blocks are in the order of a prompt: the last is evicted first. before: NULL, or the block before
 * the first.
 */
kvl_status kvl_manager_store(kvl_manager manager, const kvl_blocks *blocks, const kvl_blocks *before, uint8_t *chosen,
                             kvl_job *job);

/* kvl_job_size writes the number of a job's blocks, and of the blocks to drop first: kvl_job_evicted, kvl_drop. */
kvl_status kvl_job_size(kvl_job job, size_t *blocks, size_t *evicted);

/* kvl_job_evicted writes the names of the blocks that workers must drop before the job: all n of kvl_job_size. */
kvl_status kvl_job_evicted(kvl_job job, uint32_t *groups, uint8_t *hashes, size_t hash_bytes, size_t n);

/*
 * kvl_job_anchors writes the anchors of the job's n blocks, n * KVL_KEY_BYTES. They are the same for the workers of all ranks.
 * Workers call kvl_set_anchors with their own keys and these anchors before they drop, load or dump. KVL_NOT_FOUND: no tier
 * needs anchors.
 */
kvl_status kvl_job_anchors(kvl_job job, uint8_t *anchors, size_t n);

/*
 * kvl_job_loaded reports the times of a job that loads, before kvl_job_end. seconds: the duration of the slowest worker's load
 * (kvl_load_seconds). wait: the seconds from the decision to load to the use of the blocks, without the time in which other
 * requests were computed, or 0 if unknown.
 */
kvl_status kvl_job_loaded(kvl_job job, double seconds, double wait);

/*
 * kvl_job_direct writes 1 if the workers load the job with KVL_BYPASS, and 0 if they load it with KVL_PROMOTE. After a direct
 * job each worker looks up its blocks: the result of a block that is in memory has KVL_POOLED.
 */
kvl_status kvl_job_direct(kvl_job job, uint8_t *direct);

#define KVL_POOLED 2u /* a block of a direct job that is in a worker's memory; workers drop it before the next job */

/*
 * kvl_job_end ends a job after all workers have finished it, and frees its handle. failed is NULL, or 1 for each of the
 * job's n blocks that a worker could not store or load, else 0 or KVL_POOLED. The failed blocks become misses and may be
 * stored again.
 */
kvl_status kvl_job_end(kvl_job job, const uint8_t *failed, size_t n);

/*
 * kvl_manager_forget turns blocks that a worker found corrupt into misses. kvl_manager_touch marks blocks as used.
 * kvl_manager_set_anchors sets the anchors of n blocks, as kvl_set_anchors does.
 * kvl_manager_reset forgets all blocks in the workers' memory that belong to no job. kvl_manager_stats is like kvl_stats.
 */
kvl_status kvl_manager_forget(kvl_manager manager, const kvl_blocks *blocks);
kvl_status kvl_manager_touch(kvl_manager manager, const kvl_blocks *blocks);
kvl_status kvl_manager_set_anchors(kvl_manager manager, const kvl_blocks *blocks, const kvl_blocks *anchors);
kvl_status kvl_manager_reset(kvl_manager manager);
kvl_status kvl_manager_stats(kvl_manager manager, char *buffer, size_t *bytes);

/*
 * kvl_set_anchors sets the anchors of n blocks. The tier "remote" places a block by its anchor: the key of the first block of its
 * run of 64 blocks, counted from the start of the prompt. kvl_lease records the anchors of a whole prompt. Call kvl_set_anchors
 * before calls with blocks of the middle of a prompt, if no such lease precedes. Without the tier it has no effect.
 */
kvl_status kvl_set_anchors(kvl_engine engine, const uint8_t *keys, const uint8_t *anchors, size_t n);

/*
 * kvl_drop removes blocks from a worker's memory, but not from files. It does not wait and ignores absent blocks. It sets stay
 * to the number of blocks that are still in use; these are evicted later.
 */
kvl_status kvl_drop(kvl_engine engine, const uint8_t *keys, size_t n, size_t *stay);

/*
 * kvl_remove removes blocks from all tiers of the engine, and sets removed to their number. They are not found again until they
 * are dumped again; in directories, also after a power failure. It ignores absent blocks. KVL_BUSY: blocks that are leased,
 * pinned, loaded or dumped stay; the others are removed. Block servers may keep replicas of hot blocks. The timeout of these
 * functions is that of kvl_lookup.
 */
kvl_status kvl_remove(kvl_engine engine, const uint8_t *keys, size_t n, int64_t timeout_ms, size_t *removed);

/*
 * kvl_pin pins blocks in the tiers with directories: they are neither evicted nor removed until kvl_unpin, also after a restart.
 * They count toward the bounds of the tiers, of which half may be pinned. KVL_NOT_FOUND: no such tier has one of the blocks.
 * KVL_NO_SPACE: they exceed the limit. KVL_NOT_SUPPORTED: the engine has no tier with directories. kvl_unpin ignores blocks that
 * are not pinned.
 */
kvl_status kvl_pin(kvl_engine engine, const uint8_t *keys, size_t n, int64_t timeout_ms);
kvl_status kvl_unpin(kvl_engine engine, const uint8_t *keys, size_t n, int64_t timeout_ms);

/*
 * kvl_why writes a JSON array to a buffer, as kvl_stats does. Its objects state for each key which tiers have the block, or why
 * they do not. docs/library.md describes them.
 */
kvl_status kvl_why(kvl_engine engine, const uint8_t *keys, size_t n, int64_t timeout_ms, char *buffer, size_t *bytes);

/* A change that the engine made to the contents of a tier. The last event of a block in a tier gives its state there. */
typedef struct kvl_event {
  uint8_t change; /* KVL_EVENT_LOST, KVL_EVENT_STORED or KVL_EVENT_REMOVED */
  uint8_t tier;   /* 0 memory, 1 files, 2 log, 3 block servers, 4 bucket */
  uint8_t key[KVL_KEY_BYTES];
} kvl_event;

/* Earlier events do not give the contents: before the first event, and after more than 65,536 were waiting. */
#define KVL_EVENT_LOST 1
#define KVL_EVENT_STORED 2
#define KVL_EVENT_REMOVED 3

/*
 * kvl_events writes the oldest waiting events, at most *n, and sets *n to their number. It does not wait. The first call begins
 * the recording and returns an event KVL_EVENT_LOST. Changes by other processes, and evictions by block servers, are not
 * events.
 */
kvl_status kvl_events(kvl_engine engine, kvl_event *events, size_t *n);

#ifdef __cplusplus
}
#endif

#endif
