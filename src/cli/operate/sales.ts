import { type By, groupings } from '../../books/Books'
import { toCsv } from '../../books/csv'
import { toJson } from '../../books/json'
import { readBooks } from '../../books/read'
import * as Since from '../../books/Since'
import { toText } from '../../books/text'
import { attemptsMax, cutAttemptsMax } from '../../paywall/answer/undelivered'
import { type BesideOptions, withSales } from './database'

/** `out` prints a text as it is. */
export type SalesOptions = BesideOptions & {
  since?: string
  by?: string
  csv?: boolean
  json?: boolean
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
  const place = { ...options, out: (line: string) => out(`${line}\n`) }
  return withSales(place, async (sales) => {
    const attempts = { attemptsMax, cutAttemptsMax }
    const report = await readBooks({ sales, by, from, to: now, attempts })
    const format = options.csv ? toCsv : options.json ? toJson : toText
    out(format(report))
    return 0
  })
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
