import type { SalesReads } from '../../../db/sales'
import * as Books from '../../books/Books'
import * as Funnel from '../../books/Funnel'
import { reportCsv, reportJson, reportText } from '../../books/formats'
import { funnelCsv, funnelJson, funnelText } from '../../books/funnel-formats'
import { readBooks, readFunnel } from '../../books/read'
import * as Since from '../../books/Since'
import { attemptsMax, cutAttemptsMax } from '../../paywall/answer/undelivered'
import { CommandError } from '../Command'
import type { Run } from '../commands'
import { withSales } from './database'

/** Shows what was sold while a service may be running; it only reads. Returns the exit code. */
export async function sales(options: Run<'sales'>): Promise<number> {
  const { since = '30d', csv, json, funnel, out } = options
  const to = options.now()
  const from = Since.parse(since, to)
  if (from === undefined)
    throw new CommandError(
      `--since ${JSON.stringify(since)} is not a past time: write 30d, 24h, 2026-11-20 or a Unix time`,
    )
  if (csv && json) throw new CommandError('choose --csv or --json, not both')
  const attempts = { attemptsMax, cutAttemptsMax }
  const read = async (sales: SalesReads): Promise<string> => {
    const period = { sales, from, to }
    if (funnel) {
      const by = groupingOf(options.by ?? 'route', Funnel.groupings)
      const report = await readFunnel({ ...period, by })
      return (csv ? funnelCsv : json ? funnelJson : funnelText)(report)
    }
    const by = groupingOf(options.by ?? 'merchant', Books.groupings)
    const report = await readBooks({ ...period, by, attempts })
    return (csv ? reportCsv : json ? reportJson : reportText)(report)
  }
  const text = await withSales(options, read)
  // It ends its last line itself.
  out(text.slice(0, -1))
  return 0
}

/** Throws CommandError for another text. */
function groupingOf<By extends string>(text: string, groupings: readonly By[]): By {
  const found = groupings.find((each) => each === text)
  if (found !== undefined) return found
  const names = `${groupings.slice(0, -1).join(', ')} or ${groupings.at(-1)}`
  throw new CommandError(`--by ${JSON.stringify(text)} is unknown: write ${names}`)
}
