import { readFileSync } from 'node:fs'
import { parse } from 'smol-toml'
import { type Env, readEnv } from '../../config/env'
import { isTable, isWrong, type Read } from '../../config/reader'
import * as V from '../../config/values'
import { CommandError } from '../Command'

/** What the file says of the process: nothing else of it is read or checked. */
export type ServiceFile = {
  listen: { hostname: string; port: number }
  stopSeconds: number
}

/** Reads `listen` and `stop_seconds` of `[service]`. Throws CommandError, which shows no value. */
export function readServiceFile(file: string, env: Env): ServiceFile {
  const table = serviceTableOf(file)
  const lookup = readEnv(env)
  const read = <T>(key: string, reader: Read<T>, otherwise: T): T => {
    const raw = table[key]
    if (raw === undefined) return otherwise
    const value =
      typeof raw === 'string' ? raw.replace(/\$\{(\w+)\}/g, (_, name) => lookup(name) ?? '') : raw
    const result = reader(value)
    if (!isWrong(result)) return result
    throw new CommandError(`${file}: ${key} ${result.wrong}: run turnpike check`)
  }
  return {
    listen: read('listen', V.listen, { hostname: '127.0.0.1', port: 4020 }),
    stopSeconds: read('stop_seconds', V.integer(0, 600), 30),
  }
}

function serviceTableOf(file: string): Readonly<Record<string, unknown>> {
  let text: string
  try {
    text = readFileSync(file, 'utf8')
  } catch {
    throw new CommandError(
      `${file} cannot be read: name the file with --config, or write one with turnpike init`,
    )
  }
  try {
    const { service } = parse(text)
    return isTable(service) ? service : {}
  } catch {
    // The reason of the parser may show a line with a secret.
    throw new CommandError(`${file} is not valid TOML: run turnpike check`)
  }
}
