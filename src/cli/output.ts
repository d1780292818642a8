import { constants, fstatSync, statSync } from 'node:fs'
import { codeOf } from '../config/env'

/** Writes lines to a stream that may be closed or blocked, and never waits for it. */
export type Output = {
  write(line: string): void
  /** Lines that were not written. */
  dropped(): number
  /** Resolves when all lines are written, or after a second. */
  end(): Promise<void>
}

/** The part of `Bun.file(...).writer()` that is used: it writes without blocking. */
export type Sink = {
  write(text: string): number | Promise<number>
  flush(): number | Promise<number>
}

type OutputOptions = {
  sink: Sink
  /** Most bytes that wait for a reader that does not read; more is dropped. */
  waitingMaxBytes?: number
  /** Called when lines begin to be dropped, with the reason. */
  onLoss(reason: string): void
  /** Called when a write succeeds again, with the number of lines that are missing before it. */
  onResumed(missing: number): void
}

const endMs = 1_000

/**
 * Writes messages for people, and drops what cannot be written. For a service: `process.stderr` would
 * load the streams of node, 2 % of a start, and ends the program at a failure unless it has a listener.
 */
export function createMessages(sink: Sink): (text: string) => void {
  return (text) => {
    try {
      const written = Promise.all([sink.write(text), sink.flush()])
      written.catch(() => undefined)
    } catch {
      // Its reader has ended.
    }
  }
}

/**
 * A pipe whose reader has ended or stopped reading must neither stop the program nor fill its
 * memory. One write is in progress at a time, later lines wait, and lines that do not fit are
 * counted and dropped.
 */
export function createOutput(options: OutputOptions): Output {
  const { sink, waitingMaxBytes = 1024 * 1024 } = options
  let waiting: string[] = []
  let bytes = 0
  let dropped = 0
  /** Lines dropped since the last line that was written. */
  let missing = 0
  let run: Promise<void> | undefined

  const drop = (count: number, reason: string) => {
    dropped += count
    const isFirst = missing === 0
    missing += count
    if (isFirst) options.onLoss(reason)
  }
  const writeAll = async () => {
    // Lines logged in the same turn of the event loop become one write.
    await undefined
    while (waiting.length > 0) {
      const lines = waiting
      waiting = []
      bytes = 0
      try {
        await Promise.all([sink.write(`${lines.join('\n')}\n`), sink.flush()])
      } catch (error) {
        drop(lines.length, codeOf(error))
        continue
      }
      if (missing === 0) continue
      const count = missing
      missing = 0
      options.onResumed(count)
    }
    run = undefined
  }
  return {
    write(line) {
      if (bytes + line.length > waitingMaxBytes) return drop(1, 'its reader does not read')
      waiting.push(line)
      bytes += line.length
      run ??= writeAll()
    },
    dropped: () => dropped,
    async end() {
      await Promise.race([run, Bun.sleep(endMs)])
    },
  }
}

/**
 * Whether a person reads stdout. `process.stdout` would load the streams of node, which takes 2 % of a
 * start, so only a device that may be a terminal asks it.
 */
export function isTerminal(): boolean {
  try {
    const { mode, rdev } = fstatSync(1)
    const isDevice = (mode & constants.S_IFMT) === constants.S_IFCHR
    if (!isDevice || rdev === statSync('/dev/null').rdev) return false
  } catch {
    // It is closed, or this system has no such devices.
  }
  return process.stdout.isTTY === true
}
