import { BesideError } from '../../db/BesideError'
import { type By, groupings } from '../books/Books'
import { toCsv } from '../books/csv'
import { toJson } from '../books/json'
import { readBooks } from '../books/read'
import * as Since from '../books/Since'
import { toText } from '../books/text'
import { type Env, EnvironmentError } from '../config/env'
import { attemptsMax, cutAttemptsMax } from '../paywall/undelivered'
import { openSalesBeside } from './database'

export type SalesOptions = {
  dataDir: string
  /** May name a database server by DATABASE_URL; empty by default. */
  env?: Env
  since?: string
  by?: string
  csv?: boolean
  json?: boolean
  /** Unix ms. */
  now: () => number
  /** Prints a text as it is. */
  out: (text: string) => void
}

/** Shows what was sold while a service may be running; it only reads. Returns the exit code. */
export async function sales(options: SalesOptions): Promise<number> {
  const { since = '30d', by = 'merchant', out } = options
  const now = options.now()
  const from = Since.parse(since, now)
  const fault = faultOf(options, from)
  if (fault !== undefined || from === undefined || !isBy(by)) {
    out(`turnpike: ${fault}\n`)
    return 1
  }
  try {
    const { sales, close } = await openSalesBeside(options)
    try {
      const attempts = { attemptsMax, cutAttemptsMax }
      const report = await readBooks({ sales, by, from, to: now, attempts })
      const format = options.csv ? toCsv : options.json ? toJson : toText
      out(format(report))
      return 0
    } finally {
      await close()
    }
  } catch (error) {
    if (!(error instanceof BesideError || error instanceof EnvironmentError)) throw error
    out(`turnpike: ${error.message}\n`)
    return 1
  }
}

function faultOf({ since, by, csv, json }: SalesOptions, from: number | undefined) {
  if (from === undefined) {
    return `--since ${JSON.stringify(since)} is not a past time: write 30d, 24h, 2026-11-20 or a Unix time`
  }
  if (by !== undefined && !isBy(by)) {
    return `--by ${JSON.stringify(by)} is unknown: write ${groupings.slice(0, -1).join(', ')} or day`
  }
  return csv === true && json === true ? 'choose --csv or --json, not both' : undefined
}

function isBy(text: string): text is By {
  return groupings.some((each) => each === text)
}
