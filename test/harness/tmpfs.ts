import { accessSync, constants, statfsSync } from 'node:fs'

/**
 * Puts the directories of tests into memory where there is room, as a preload of bunfig.toml. SQLite
 * waits for the disk at each commit, 0.6 ms where memory takes 0.01 ms, and its wait stops all of a
 * test. Tests kill processes, not machines: what was written outlives them in memory, too.
 */
const memory = '/dev/shm'
/** A whole run needs less than a fifth of it. Containers often have only 64 MiB. */
const neededBytes = 2 ** 31

if (process.env.TMPDIR === undefined && hasRoom()) process.env.TMPDIR = memory

function hasRoom(): boolean {
  try {
    accessSync(memory, constants.W_OK)
    const { bavail, bsize } = statfsSync(memory)
    return bavail * bsize >= neededBytes
  } catch {
    return false
  }
}
