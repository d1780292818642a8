import { type Line, type Report, sorted, sumOf } from './Funnel'
import { align, cell, minute, shownMax } from './formats'
import { nameOf } from './Group'

/** The funnel for people: a table of the groups, then why requests were refused. */
export function funnelText({ by, from, to, lines, total }: Report): string {
  const title = `Requests from ${minute(from)} to ${minute(to)} UTC, in whole days, by ${by}`
  if (lines.length === 0) return `${title}\n\nNo requests.\n`
  const rows = lines.slice(0, shownMax).map((line) => [nameOf(line), ...cellsOf(line)])
  const rest = lines.length - rows.length
  const refusals = sorted(total.refused).map(([reason, times]) => [reason, String(times)])
  const parts = [
    [title],
    [
      ...align([[by, ...head], ...rows, ['total', ...cellsOf(total)]], 1),
      ...(rest > 0 ? [`${rest} more lines: --csv and --json have all`] : []),
    ],
    [
      '402: answers to requests without a payment. tries: requests with one. paid: confirmed payments of buyers.',
      'buyers: payers, each counted once a day. came again: those that have paid on an earlier day.',
      'free: answers of a pass, a trial, or fetched again.',
    ],
    refusals.length === 0 ? [] : ['Refused or failed tries, by reason', ...align(refusals, 1)],
  ]
  const texts = parts.filter((part) => part.length > 0).map((part) => part.join('\n'))
  return `${texts.join('\n\n')}\n`
}

const head = [
  '402',
  'tries',
  'refused',
  'paid',
  'paid of 402',
  'buyers',
  'came again',
  'own wallets',
  'free',
]

function cellsOf({ asked, tried, refused, free, paid, buyers, again, own }: Line): string[] {
  const share = asked === 0 ? '' : `${((paid / asked) * 100).toFixed(1)} %`
  const [tries, refusals] = [sumOf(tried), sumOf(refused)].map(String)
  const counts = [buyers, again, own, sumOf(free)].map(String)
  return [String(asked), tries ?? '', refusals ?? '', String(paid), share, ...counts]
}

export function funnelJson({ by, from, to, lines, total }: Report): string {
  const json = {
    since: new Date(from).toISOString(),
    until: new Date(to).toISOString(),
    by,
    lines: lines.map(lineJson),
    total: lineJson(total),
  }
  return `${JSON.stringify(json, null, 2)}\n`
}

function lineJson({ tried, refused, free, ...line }: Line) {
  const [tries, refusals, uses] = [tried, refused, free].map((all) =>
    Object.fromEntries(sorted(all)),
  )
  return { ...line, tried: tries, refused: refusals, free: uses }
}

/** The columns in their order. Add new ones at the end, because scripts read them by place. */
const columns = ['day', 'merchant', 'route', 'client', 'step', 'detail', 'times'] as const

/** The funnel as CSV (RFC 4180): one line for each group, step and detail. */
export function funnelCsv({ lines }: Report): string {
  const rows = lines.flatMap(({ day, merchant, route, client, ...line }) =>
    stepsOf(line).map(([step, detail, times]) =>
      [day, merchant, route, client, step, detail, times].map(cell).join(','),
    ),
  )
  return `${[columns.join(','), ...rows].join('\r\n')}\r\n`
}

function stepsOf({ asked, tried, refused, free, paid, buyers, again, own }: Line) {
  const all: readonly (readonly [step: string, detail: string, times: number])[] = [
    ['asked', '', asked],
    ...sorted(tried).map(([detail, times]) => ['tried', detail, times] as const),
    ...sorted(refused).map(([detail, times]) => ['refused', detail, times] as const),
    ['paid', '', paid],
    ['buyers', '', buyers],
    ['again', '', again],
    ['own', '', own],
    ...sorted(free).map(([detail, times]) => ['free', detail, times] as const),
  ]
  return all.filter(([, , times]) => times > 0)
}
