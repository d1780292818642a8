import { existsSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { failed } from '../Command'
import type { Run } from '../commands'
import { readServiceFile } from './ServiceFile'
import { format, UnitError } from './Unit'

const usualData = '/var/lib/turnpike'

/** Prints a systemd unit for this program. Returns the exit code. */
export function service(
  { data, env, user, domain, out, err, ...options }: Run<'service'>,
  {
    cwd = process.cwd(),
    program = ownProgram(),
  }: { cwd?: string; program?: readonly string[] } = {},
): number {
  try {
    const file = resolve(cwd, options.file)
    const { listen, stopSeconds } = readServiceFile(file, env)
    const dataDir = dataDirOf(cwd, data)
    const hasLowPort = domain !== undefined || (listen.port > 0 && listen.port < 1024)
    const unit = format({ program, file, dataDir, user, domain, stopSeconds, hasLowPort })
    out(unit.trimEnd())
    for (const path of [...program, file]) {
      const reason = hidden(path)
      if (reason) err(`turnpike: ${path} is ${reason}: move it, then print the unit again`)
    }
    return 0
  } catch (error) {
    return failed(error, err)
  }
}

/**
 * The data directory, by default that of a service. A directory in use is not silently replaced by
 * an empty one: it has the keys and the payments.
 */
function dataDirOf(cwd: string, data: string | undefined): string {
  if (data !== undefined) return resolve(cwd, data)
  const used = join(cwd, 'data')
  if (!existsSync(join(used, 'turnpike.sqlite'))) return usualData
  throw new UnitError(
    `${used} has the keys and payments of earlier starts: name it with --data and its owner with --user, or name a new directory with --data ${usualData}`,
  )
}

/** The executable, or the runtime with the sources. Arguments follow it. */
function ownProgram(): readonly string[] {
  const isCompiled = Bun.main.startsWith('/$bunfs/')
  return isCompiled ? [process.execPath] : [process.execPath, Bun.main]
}

/** Why the account of a service may not see a path. */
function hidden(path: string): string | undefined {
  if (/^\/(tmp|var\/tmp)\//.test(path)) return 'a temporary file, which the service does not see'
  if (/^\/(home|root)\//.test(path))
    return 'in a home directory, which the account of the service may be unable to read'
  return undefined
}
