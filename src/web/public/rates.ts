import type { Meter, Rates } from '../../meter/Meter'
import * as Amount from '../../protocol/Amount'
import { type Html, html } from '../html'

/** What the units of a meter cost, by model. `names`: the buyer's names of models. */
export function ratesTable(
  { rates, models }: Meter,
  names: ReadonlyMap<string, string>,
): Html | false {
  const rows = [
    ...Object.entries(models),
    ...(Object.keys(rates).length === 0 ? [] : [['any other', rates] as const]),
  ]
  if (rows.length === 0) return false
  const units = [...new Set(rows.flatMap(([, each]) => Object.keys(each)))]
  const hasModels = Object.keys(models).length > 0
  return html`<div class="scroll" role="region" aria-label="Prices of units" tabindex="0"><table class="rates">
<thead><tr>${hasModels && html`<th scope="col">Model</th>`}${units.map((unit) => html`<th scope="col" class="number">${unit}</th>`)}</tr></thead>
<tbody>${rows.map(
    ([model, each]) =>
      html`<tr>${hasModels && html`<th scope="row">${names.get(model) ?? model}</th>`}${units.map((unit) => html`<td class="number">${priceOf(each, unit)}</td>`)}</tr>`,
  )}</tbody>
</table></div>`
}

function priceOf(rates: Rates, unit: string): string {
  const rate = rates[unit]
  if (rate === undefined) return '-'
  const price = Amount.toDecimal(rate.priceScaled, 12).replace(/(\.\d\d\d*?)0+$/, '$1')
  return rate.per === 1 ? `$${price}` : `$${price} / ${shortened(rate.per)}`
}

/** `1M`, `1k`. */
function shortened(number: number): string {
  if (number % 1_000_000 === 0) return `${number / 1_000_000}M`
  return number % 1000 === 0 ? `${number / 1000}k` : String(number)
}
