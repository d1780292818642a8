import { type Cluster, startCluster } from '../../harness/postgres'

/** What a start demands, and the housekeeping of a server that runs for long. */
const settings = {
  fsync: 'on',
  full_page_writes: 'on',
  autovacuum: 'on',
  shared_buffers: '256MB',
  min_wal_size: '256MB',
  max_wal_size: '1GB',
}

let shared: Promise<Cluster> | undefined
let databases = 0

/**
 * The PostgreSQL of this run, which ends with it. The scheduler may run it on every core. Its URLs are of
 * the Unix socket, as an operator of one machine would have it.
 */
export function cluster(): Promise<Cluster> {
  shared ??= startCluster({ settings, onAllCores: true })
  return shared
}

/** URL of a new, empty database. */
export async function newDatabase(): Promise<string> {
  const { run, url } = await cluster()
  databases++
  const name = `bench_${databases}`
  await run(`CREATE DATABASE ${name}`)
  return url(name)
}
