import { type Cluster, startCluster } from '../harness/postgres'
import { until } from '../harness/world'

/**
 * A primary and its synchronous standby. A commit is acknowledged when it is on both, so a promotion
 * loses nothing that was acknowledged.
 */
export type Pair = {
  /** Of both servers. They stay the same, and one of them is the primary. */
  ports: readonly [number, number]
  /** Of a database of the present primary. */
  url(database: string): string
  /** Runs a statement at the present primary. */
  run: Cluster['run']
  /** Ends all processes of the primary at once. */
  crash(): Promise<void>
  /** Starts the primary again after `crash`. */
  start(): Promise<void>
  /**
   * Ends the primary at once, makes the standby the primary, and starts a new standby at the port of
   * the old primary. Commits wait until that one has all that was committed.
   */
  promote(): Promise<void>
  /** Ends the standby, and starts it again after so long. Commits wait until it has followed. */
  away(ms: number): Promise<void>
  stop(): Promise<void>
}

const settings = {
  fsync: 'on',
  full_page_writes: 'on',
  wal_retrieve_retry_interval: '200',
  // A new standby needs what is written while it copies.
  wal_keep_size: '256MB',
}

export async function startPair(): Promise<Pair> {
  let primary = await startCluster({ tcp: true, settings })
  // A copy has it too. It counts after the reload, because without a standby every commit would wait.
  await primary.run("ALTER SYSTEM SET synchronous_standby_names = '*'")
  let standby = await startStandby(primary)
  await primary.run('SELECT pg_reload_conf()')
  await isSynchronous(primary)
  return {
    ports: [primary.port, standby.port],
    url: (database) => primary.url(database),
    run: (statement, inDatabase) => primary.run(statement, inDatabase),
    crash: () => primary.crash(),
    start: () => primary.start(),
    async promote() {
      await isSynchronous(primary)
      const { port } = primary
      await primary.stop()
      await standby.run('SELECT pg_promote()')
      primary = standby
      standby = await startStandby(primary, port)
      await isSynchronous(primary)
    },
    async away(ms) {
      await standby.crash()
      await Bun.sleep(ms)
      await standby.start()
      await isSynchronous(primary)
    },
    async stop() {
      await standby.stop()
      await primary.stop()
    },
  }
}

function startStandby(primary: Cluster, port?: number): Promise<Cluster> {
  return startCluster({
    ...{ tcp: true, settings, standbyOf: primary.url() },
    ...(port !== undefined && { port }),
  })
}

function isSynchronous(primary: Cluster): Promise<void> {
  return until('the standby is synchronous', async () => {
    const rows = await primary.run('SELECT sync_state FROM pg_stat_replication')
    return rows.some(({ sync_state }) => sync_state === 'sync')
  })
}
