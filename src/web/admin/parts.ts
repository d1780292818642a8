import { type Asset, usdText } from '../../books/Books'
import * as Amount from '../../protocol/Amount'
import { type Html, html } from '../html'

/** `2026-11-20 10:30:05`, UTC; in lines on a phone `11-20 10:30`. */
export function time(at: number): Html {
  const iso = new Date(at).toISOString()
  const [year, rest, seconds] = [iso.slice(0, 5), iso.slice(5, 16), iso.slice(16, 19)]
  return html`<time datetime="${iso}"><span class="wide">${year}</span>${rest.replace('T', ' ')}<span class="wide">${seconds}</span></time>`
}

/** `42 s`, `7 min`, `3 h` or `12 days`. */
export function duration(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1000))
  if (seconds < 120) return `${seconds} s`
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`
  if (seconds < 172_800) return `${Math.round(seconds / 3600)} h`
  return `${Math.round(seconds / 86_400)} days`
}

/** An address, a hash or an id by its begin and its end. */
export function short(text: string): Html {
  const isLong = text.length > 18
  return isLong
    ? html`<code title="${text}">${text.slice(0, text.startsWith('0x') ? 6 : 8)}&hellip;${text.slice(-4)}</code>`
    : html`<code>${text}</code>`
}

/**
 * Digits with separators of thousands. A fraction has at least two decimals and no further trailing
 * zeros.
 */
function digits(text: string): string {
  const [whole = '0', fraction = ''] = text.split('.')
  const kept = fraction.replace(/0+$/, '').padEnd(2, '0')
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, ',')
  return fraction === '' ? grouped : `${grouped}.${kept}`
}

/** `1,234.50 USDC`; atomic where the decimals are not known. */
export function amount(atomic: bigint, { symbol, decimals }: Pick<Asset, 'symbol' | 'decimals'>) {
  return `${digits(decimals === undefined ? String(atomic) : Amount.toDecimal(atomic, decimals))} ${symbol}`
}

/** Native coin in ETH, with four significant digits. */
export function coin(wei: bigint): string {
  const places = Math.max(0, wei.toString().length - 4)
  const unit = 10n ** BigInt(places)
  const text = Amount.toDecimal((wei / unit) * unit, 18).replace(/\.?0+$/, '')
  return `${text.replace(/\B(?=(\d{3})+$)(?<!\.\d*)/g, ',')} ETH`
}

/** `0.02 ETH ($80.00)`; a tiny worth as a bound. */
export function coinAndUsd(wei: bigint, { ethPriceUsd }: { ethPriceUsd: number }): string {
  const worth = (Number(wei) / 1e18) * ethPriceUsd
  return `${coin(wei)} (${worth > 0 && worth < 0.01 ? 'under $0.01' : `$${worth.toFixed(2)}`})`
}

export function gwei(wei: bigint): string {
  return `${(Number(wei) / 1e9).toPrecision(3).replace(/\.?0+$/, '')} gwei`
}

/**
 * Millionths of a USD: to the cent from a dollar on, else with all digits. The exact value is in the
 * markup, for programs.
 */
export function usd(micro: bigint | undefined): Html {
  if (micro === undefined) return html`unknown`
  const absolute = micro < 0n ? -micro : micro
  const text = absolute >= 1_000_000n ? usdText((absolute / 10_000n) * 10_000n) : usdText(absolute)
  return html`<data value="${String(micro)}">${micro < 0n ? html`&minus;` : ''}$${digits(text)}</data>`
}

/** A number with separators of thousands. */
export function figure(value: number): Html {
  return html`<data value="${value}">${value.toLocaleString('en')}</data>`
}

/** `37.5 %`; a dash where there is nothing to compare. */
export function percent(part: number, whole: number): string {
  return whole === 0 ? '-' : `${((part / whole) * 100).toFixed(1)} %`
}

export type Cell = Html | string | number

/**
 * A column of a table: its title, and its cell in a row. Numbers are right-aligned with digits of one
 * width. The first column names the row.
 */
export type Column<Row> = readonly [title: string, cell: (row: Row) => Cell, kind?: 'number']

/**
 * A table that scrolls by itself where it is too wide; `empty` instead of one without rows. On a
 * phone each row is a card whose values have the titles of their columns, unless all are numbers or it
 * is a list: then each row is one line, which scrolls.
 */
export function table<Row>(
  title: string | { list: string },
  rows: readonly Row[],
  [first, ...others]: readonly [Column<Row>, ...Column<Row>[]],
  empty: string | Html = '',
): Html {
  if (rows.length === 0) return html`<p class="empty">${empty}</p>`
  const isList = typeof title === 'object'
  const name = isList ? title.list : title
  const isFigures = others.every(([, , kind]) => kind === 'number')
  const classOf = ([, , kind]: Column<Row>) => kind && html` class="${kind}"`
  return html`<div class="scroll ${isList ? 'lines' : isFigures ? 'figures' : 'cards'}" role="region" aria-label="${name}" tabindex="0"><table>
<thead><tr>${[first, ...others].map((column) => html`<th scope="col"${classOf(column)}>${column[0]}</th>`)}</tr></thead>
<tbody>${rows.map(
    (row) =>
      html`<tr><th scope="row">${first[1](row)}</th>${others.map(
        (column) => html`<td${classOf(column)} data-label="${column[0]}">${column[1](row)}</td>`,
      )}</tr>
`,
  )}</tbody>
</table></div>`
}

/** Names with their values. */
export function facts(pairs: readonly (readonly [name: string, value: Cell | undefined])[]): Html {
  return html`<dl class="facts">${pairs.map(
    ([name, value]) => value !== undefined && html`<div><dt>${name}</dt><dd>${value}</dd></div>`,
  )}</dl>`
}

/** Bars of equal width, one for each value. Values are millionths of a USD. */
export function bars(label: string, values: readonly { name: string; micro: bigint }[]): Html {
  const [most = 0n] = values.map(({ micro }) => micro).toSorted((a, b) => (a < b ? 1 : -1))
  const [width, height] = [720, 160]
  const step = width / Math.max(1, values.length)
  const heightOf = (micro: bigint) =>
    most === 0n ? 0 : Math.max(micro > 0n ? 2 : 0, Number((micro * 1000n) / most) * (height / 1000))
  const [first, middle, last] = [0, values.length >> 1, values.length - 1].map(
    (index) => values[index]?.name,
  )
  return html`<p class="most"><span>${usd(most)}</span></p>
<svg class="bars" viewBox="0 0 ${width} ${height}" preserveAspectRatio="none" role="img" aria-label="${label}">
${[0, 80].map((y) => html`<line class="grid" x1="0" y1="${y}" x2="${width}" y2="${y}"/>`)}
${values.map(({ name, micro }, index) => {
  const tall = heightOf(micro)
  return html`<rect class="bar" x="${(index * step + 2).toFixed(1)}" y="${(height - tall).toFixed(1)}" width="${(step - 4).toFixed(1)}" height="${tall.toFixed(1)}"><title>${name}: ${usdText(micro)} USD</title></rect>`
})}
<line class="axis" x1="0" y1="${height}" x2="${width}" y2="${height}"/>
</svg>
<p class="ticks" aria-hidden="true"><span>${first}</span><span>${middle}</span><span>${last}</span></p>`
}
