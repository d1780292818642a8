import { mkdirSync, statfsSync, statSync } from 'node:fs'
import { join, resolve } from 'node:path'
import type { Operator } from '../../app/options'
import { isCompiled } from '../words'
import { ofServer } from './backup'

type OperatorOptions = {
  /** Path of the file with the configuration. */
  file: string
  dataDir: string
  /** Path of the database; undefined for that of a server. */
  database: string | undefined
  reload: Operator['reload']
}

/**
 * What `/admin` may start. A backup goes only into the folder `backups` of the data directory, under
 * a name of ours: a request must not choose which file of the machine is written.
 */
export function createOperator({ file, dataDir, database, reload }: OperatorOptions): Operator {
  let running = false
  return {
    file: resolve(file),
    reload,
    async backUp(at) {
      if (database === undefined) return { ok: false, text: `There is no backup: ${ofServer}` }
      if (running) return { ok: false, text: 'A backup is being made: wait for it.' }
      running = true
      try {
        return await backUp(resolve(dataDir), statSync(database).size, at)
      } catch (error) {
        const reason = error instanceof Error ? error.message : String(error)
        return { ok: false, text: `There is no backup: ${reason}` }
      } finally {
        running = false
      }
    },
  }
}

/**
 * Runs in a process of its own, because a copy of a large database takes seconds, in which this
 * process would serve nothing.
 */
async function backUp(dataDir: string, size: number, at: number): ReturnType<Operator['backUp']> {
  const folder = join(dataDir, 'backups')
  mkdirSync(folder, { recursive: true, mode: 0o700 })
  const { bavail, bsize } = statfsSync(folder)
  // A full disk would stop the sales.
  if (bavail * bsize < 2 * size)
    return { ok: false, text: 'There is no backup: the disk has too little space for it.' }
  const name = `turnpike-${new Date(at).toISOString().slice(0, 19).replaceAll(':', '')}.sqlite`
  const file = join(folder, name)
  const program = isCompiled() ? [] : [join(import.meta.dir, '../../main.ts')]
  const child = Bun.spawn([process.execPath, ...program, 'backup', file, '--data', dataDir], {
    // A copy does not need the keys in the environment.
    env: { PATH: process.env.PATH ?? '' },
    stdin: 'ignore',
    stdout: 'pipe',
    stderr: 'pipe',
  })
  const [out, problems] = await Promise.all([child.stdout.text(), child.stderr.text()])
  const code = await child.exited
  const text = (code === 0 ? out : problems || out).trim()
  return { ok: code === 0, text: text.replace(/^turnpike: /, 'There is no backup: ') }
}
