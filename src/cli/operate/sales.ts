import { type By, groupings } from '../../books/Books'
import { reportCsv, reportJson, reportText } from '../../books/formats'
import { readBooks } from '../../books/read'
import * as Since from '../../books/Since'
import { attemptsMax, cutAttemptsMax } from '../../paywall/answer/undelivered'
import { CommandError } from '../Command'
import type { Run } from '../commands'
import { withSales } from './database'

/** Shows what was sold while a service may be running; it only reads. Returns the exit code. */
export async function sales(options: Run<'sales'>): Promise<number> {
  const { since = '30d', by = 'merchant', csv, json, out } = options
  const now = options.now()
  const from = Since.parse(since, now)
  if (from === undefined)
    throw new CommandError(
      `--since ${JSON.stringify(since)} is not a past time: write 30d, 24h, 2026-11-20 or a Unix time`,
    )
  if (!isBy(by))
    throw new CommandError(
      `--by ${JSON.stringify(by)} is unknown: write ${groupings.slice(0, -1).join(', ')} or day`,
    )
  if (csv && json) throw new CommandError('choose --csv or --json, not both')
  return withSales(options, async (sales) => {
    const attempts = { attemptsMax, cutAttemptsMax }
    const report = await readBooks({ sales, by, from, to: now, attempts })
    const text = (csv ? reportCsv : json ? reportJson : reportText)(report)
    // It ends its last line itself.
    out(text.slice(0, -1))
    return 0
  })
}

function isBy(text: string): text is By {
  return groupings.some((each) => each === text)
}
