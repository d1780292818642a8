import { type Html, html } from '../html'
import { dollars } from '../parts'

/** A price at a time, unix ms. */
export type Point = { at: number; priceAtomic: bigint }

/** Fewer points show no trend. */
const pointsMin = 3

const width = 96
const height = 24
/** Keeps the thick line inside of the picture. */
const margin = 2

/** A price over time, as a line with its figures as text; undefined with too few points. */
export function sparkline(name: string, points: readonly Point[]): Html | undefined {
  const [first, last] = [points[0], points.at(-1)]
  if (points.length < pointsMin || first === undefined || last === undefined) return undefined
  const prices = points.map(({ priceAtomic }) => Number(priceAtomic))
  const [low, high] = [Math.min(...prices), Math.max(...prices)]
  const x = (at: number) =>
    margin + ((at - first.at) / Math.max(1, last.at - first.at)) * (width - 2 * margin)
  // A price that did not change is a line in the middle.
  const y = (price: number) =>
    high === low
      ? height / 2
      : height - margin - ((price - low) / (high - low)) * (height - 2 * margin)
  const line = points
    .map(({ at, priceAtomic }) => `${x(at).toFixed(1)},${y(Number(priceAtomic)).toFixed(1)}`)
    .join(' ')
  const label = `${name}: ${price(first)} to ${price(last)} in the last ${lengthOf(last.at - first.at)}`
  return html`<svg class="spark" role="img" aria-label="${label}" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}"><title>${label}</title><polyline points="${line}" fill="none" stroke="currentColor" stroke-width="1.5" stroke-linejoin="round"/></svg>`
}

/** With two decimals, as in the table beside it. */
function price({ priceAtomic }: Point): string {
  return `$${Number(dollars(priceAtomic)).toFixed(2)}`
}

function lengthOf(ms: number): string {
  const minutes = Math.max(1, Math.round(ms / 60_000))
  return minutes < 90 ? `${minutes} minutes` : `${Math.round(minutes / 60)} hours`
}
