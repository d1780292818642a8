import { Type } from '@sinclair/typebox'
import type { Range } from '../../books/ranges'
import * as Since from '../../books/Since'
import * as Schema from '../../protocol/Schema'
import { dayMs, dayOf, dayStart } from '../../protocol/Time'
import { type Html, html } from '../html'

const day = Type.Optional(
  Type.String({
    maxLength: 10,
    pattern: '^\\d{4}-\\d\\d-\\d\\d$',
    description: 'a UTC day such as 2026-11-20; `to` is part of the period',
    fault: 'is not a day such as 2026-11-20',
  }),
)

/** The query of the pages about a period. */
export const rangeQuery = Type.Object({
  from: day,
  to: day,
  by: Type.Optional(Type.String({ maxLength: 20, description: 'how the lines are grouped' })),
})

/** Longest period, days: counts of requests are kept for as long. */
const daysMax = 400

/** A period with its grouping, as the form shows it. */
export type Chosen<By extends string> = { range: Range; by: By; fault: string | undefined }

/** The period of a query, by default the last 30 days. `fault` names a field that cannot be read. */
export function readRange<By extends string>(
  params: URLSearchParams,
  groupings: readonly [By, ...By[]],
  now: number,
): Chosen<By> {
  const today = dayStart(now)
  const filled = new URLSearchParams(
    [...params].filter(([name, text]) => text !== '' && name in rangeQuery.properties),
  )
  const { values, wrong } = Schema.readQuery(rangeQuery, filled)
  const [first] = wrong
  const at = (text: string | undefined, otherwise: number) =>
    text === undefined ? otherwise : Since.parse(text, now)
  const to = at(values.to, today)
  const from = at(values.from, (to ?? today) - 29 * dayMs)
  const by = groupings.find((each) => each === (values.by ?? groupings[0]))
  const period = from === undefined || to === undefined ? undefined : { from, to: to + dayMs }
  const range = period ?? { from: today - 29 * dayMs, to: today + dayMs }
  const fault =
    (first && `${first.name} ${first.reason}.`) ??
    (by === undefined ? `The grouping is not known: choose ${groupings.join(', ')}.` : undefined) ??
    (period === undefined ? 'A day is not in the calendar, or in the future.' : undefined) ??
    (range.from >= range.to ? 'The first day is after the last one.' : undefined) ??
    (range.to - range.from > daysMax * dayMs ? `Choose at most ${daysMax} days.` : undefined)
  return { range, by: by ?? groupings[0], fault }
}

/** The form of a period, and links to frequent ones. */
export function rangeForm<By extends string>(
  path: string,
  { range, by, fault }: Chosen<By>,
  groupings: readonly By[],
  now: number,
): Html {
  const today = dayStart(now)
  const frequent = [
    ['Today', 1],
    ['7 days', 7],
    ['30 days', 30],
    ['90 days', 90],
  ] as const
  const field = (name: string, text: string, at: number) =>
    html`<label>${text} <input type="date" name="${name}" value="${dayOf(at)}" max="${dayOf(today)}" required></label>`
  return html`<form class="search" method="get" action="${path}">
${field('from', 'From', range.from)}
${field('to', 'To', range.to - dayMs)}
<label>By <select name="by">${groupings.map((each) => html`<option value="${each}"${each === by && html` selected`}>${each}</option>`)}</select></label>
<div><button>Show</button></div>
</form>
<p class="quiet">${frequent.map(
    ([text, days], index) =>
      html`${index > 0 && ' | '}<a href="${path}?from=${dayOf(today - (days - 1) * dayMs)}&amp;by=${by}">${text}</a>`,
  )}</p>
${fault !== undefined && html`<p class="fault" role="alert">${fault}</p>`}`
}

export const addingUp = html`<p class="note" role="status">The figures of this period are being added up. Load the page again in a moment.</p>`
