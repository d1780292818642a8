import { encode } from 'uqr'
import { type Html, html } from './html'

/**
 * A QR code as an image; `label` says what it is for. A code takes milliseconds to make, most of them to
 * compare the eight masks; `isFast` takes one of them, which scanners read as well.
 */
export function qr(text: string, label: string, { isFast = false } = {}): Html {
  const { data, size } = encode(text, {
    border: 4,
    ...(isFast ? { ecc: 'L', maskPattern: 2 } : { ecc: 'M' }),
  })
  // One line for each run of dark modules.
  const path = data.map((row, y) => {
    const line = row.map((isDark) => (isDark ? '#' : ' ')).join('')
    return [...line.matchAll(/#+/g)].map(({ 0: run, index }) => `M${index} ${y}h${run.length}`)
  })
  return html`<svg class="qr" viewBox="0 0 ${size} ${size}" role="img" aria-label="${label}" shape-rendering="crispEdges"><rect width="${size}" height="${size}" fill="#fff"/><path d="${path.flat().join('')}" stroke="#000" transform="translate(0 .5)"/></svg>`
}
