import { readFileSync } from 'node:fs'
import type { App } from '../../app'
import { type Env, EnvironmentError, findOwnKeys } from '../../config/env'
import { index, lineOf, type Path } from '../../config/lines'
import { format, parse } from '../../config/merchants'
import type { Log } from '../../log'
import * as Crypto from '../../protocol/Crypto'

export type ReloadOptions = {
  app: Pick<App, 'reload'>
  file: string
  dataDir: string
  env: Env
  /** Domains of `--domain`. */
  domains?: readonly string[] | undefined
  /** Accounts of the keys with which the process runs, the desk's last. */
  relayers: readonly `0x${string}`[]
  log: Log
}

/**
 * Reads the file again and applies it, or keeps the present configuration and logs every reason as
 * `file:line: message`. Returns these reasons: none when the file was applied. Never throws.
 */
export async function reload(options: ReloadOptions): Promise<readonly string[]> {
  const { app, file, env, domains = [], log } = options
  try {
    const text = readFileSync(file, 'utf8')
    const faults = changedKeys(options)
    const result = parse(text, { file, env, domains, relayers: () => options.relayers })
    faults.push(...result.faults.map(format))
    if (result.config !== undefined && faults.length === 0) {
      const places = await app.reload(result.config)
      if (places.length === 0) {
        const { merchants, hash } = result.config
        const routes = merchants.reduce((sum, merchant) => sum + merchant.routes.length, 0)
        log('reloaded', { file, merchants: merchants.length, routes, hash })
        return []
      }
      faults.push(...describe(places, text, file))
    }
    log('reload-refused', { faults })
    return faults
  } catch (error) {
    const isOurs = error instanceof EnvironmentError
    log('reload-refused', { faults: isOurs ? [error.message] : [], error })
    return [isOurs ? error.message : 'the file cannot be read or applied; the log has the error']
  }
}

/** Key files can change. Payments in progress were signed with the keys of the start. */
function changedKeys({ dataDir, env, relayers }: ReloadOptions): string[] {
  const found = findOwnKeys({ dataDir, env }).map(Crypto.addressOf)
  if (found.join() === relayers.join()) return []
  return [
    'the relayer keys or the desk key are not those the process was started with: restart to change them',
  ]
}

function describe(places: readonly Path[], text: string, file: string): string[] {
  const lines = index(text)
  return places.map((path) =>
    format({
      file,
      line: lineOf(lines, path),
      message: `${path.join('.')} has changed, which needs a restart`,
    }),
  )
}
