import type { ServerState, StorageFaults } from '../../db/Database'
import type { Registry } from '../http/metrics'
import type { Log } from '../log'

/** Reports faults of the database by an error in the log and two metrics. */
export function reportStorage(storage: StorageFaults, registry: Registry, log: Log): void {
  const { file } = storage
  storage.onChange((code) => {
    if (code === undefined) log('storage-recovered', { file })
    else log('storage-fault', { file, code })
  })
  const ready = registry.gauge('storage_ready', 'Whether the database can be written.')
  const faults = registry.counter('storage_faults_total', 'Faults of the database by code.', [
    'code',
  ])
  const told = new Map<string, number>()
  registry.onRender(() => {
    ready.set(storage.fault() === undefined ? 1 : 0)
    for (const [code, count] of storage.counts()) {
      faults.inc({ code }, count - (told.get(code) ?? 0))
      told.set(code, count)
    }
  })
}

/** Reports the clock and the standbys of a database server; a file has neither. */
export function reportServer(server: ServerState | undefined, registry: Registry): void {
  const ahead = registry.gauge(
    'database_clock_ahead_seconds',
    'How far the clock of the database server is ahead of this one.',
  )
  const standbys = registry.gauge(
    'database_standby',
    'Which standby would keep acknowledged commits if the database server were lost: 1 for the present state. None with SQLite.',
    ['standby'],
  )
  if (server === undefined) return
  registry.onRender(() => {
    ahead.set(server.aheadMs() / 1000)
    for (const standby of ['none', 'async', 'sync', 'unknown'] as const)
      standbys.set(standby === server.standby() ? 1 : 0, { standby })
  })
}

/** Reports the memory of this process, and which build it is. */
export function reportProcess(version: string, registry: Registry): void {
  const build = registry.gauge('build_info', 'Always 1: the version of the program.', ['version'])
  build.set(1, { version })
  const memory = registry.gauge(
    'process_resident_memory_bytes',
    'Memory of the process that is in RAM (resident set).',
  )
  registry.onRender(() => memory.set(process.memoryUsage.rss()))
}

/** Reports that clients have too many connections. */
export function connectionReports(registry: Registry, log: Log) {
  const full = registry.counter(
    'connections_full_total',
    'Times that idle connections were ended because too many were open.',
  )
  return {
    onFull(open: number) {
      full.inc()
      log('connections-full', { openFiles: open })
    },
    onFault: (error: unknown) => log('listen-failed', { error }),
  }
}

/** Counts lines of the log that could not be written. */
export function reportDroppedLines(dropped: () => number, registry: Registry): void {
  const counter = registry.counter(
    'log_lines_dropped_total',
    'Lines of the log that could not be written.',
  )
  let told = 0
  registry.onRender(() => {
    const total = dropped()
    counter.inc({}, total - told)
    told = total
  })
}
