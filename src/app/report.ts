import type { Registry } from '../http/metrics'
import type { Log } from '../log'

/** The file of the ledger, as far as it is reported. */
type ReportedStorage = {
  file: string
  fault(): string | undefined
  /** Faults since the start, by code. */
  counts(): ReadonlyMap<string, number>
  onChange(listener: (code: string | undefined) => void): void
}

/** Reports faults of the database file by an error in the log and two metrics. */
export function reportStorage(storage: ReportedStorage, registry: Registry, log: Log): void {
  const { file } = storage
  storage.onChange((code) => {
    if (code === undefined) log('storage-recovered', { file })
    else log('storage-fault', { file, code })
  })
  const ready = registry.gauge('storage_ready', 'Whether the database can be written.')
  const faults = registry.counter('storage_faults_total', 'Faults of the database file by code.', [
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
