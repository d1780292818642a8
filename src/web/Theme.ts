/**
 * The shades of an operator's colour. No colour can be read on a light and on a dark page, so text and
 * lines get a darker and a lighter shade of it. Buttons keep the colour itself.
 */
export type Theme = {
  /** Colour of buttons, and of the text on them. */
  brand: string
  onBrand: string
  /** Text, links and focus on a light page and on a dark page. */
  light: string
  dark: string
}

/** WCAG 2.2 level AA for text. */
export const contrastMin = 4.5

/** The background of text that is nearest to the text in brightness: --tint of base.css. */
export const backgrounds = { light: '#eef1f0', dark: '#222a2e' } as const

/** Shades of a colour `#rrggbb`. */
export function from(accent: string): Theme {
  return {
    brand: accent,
    onBrand: contrast(accent, '#ffffff') >= contrast(accent, '#000000') ? '#ffffff' : '#000000',
    light: readable(accent, backgrounds.light, '#000000'),
    dark: readable(accent, backgrounds.dark, '#ffffff'),
  }
}

/** Rules that follow those of base.css and style.css. */
export function toCss({ brand, onBrand, light, dark }: Theme): string {
  const button = `--brand:${brand};--on-brand:${onBrand};--accent:`
  return `:root{${button}${light}}@media (prefers-color-scheme:dark){:root{${button}${dark}}}`
}

/** Contrast ratio of two colours, 1 to 21. https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio */
export function contrast(one: string, other: string): number {
  const [low = 0, high = 0] = [luminance(one), luminance(other)].sort((a, b) => a - b)
  return (high + 0.05) / (low + 0.05)
}

/** The colour, mixed with as little of the other one as the contrast needs. */
function readable(colour: string, background: string, toward: string): string {
  for (let percent = 0; percent < 100; percent++) {
    const mixed = mix(colour, toward, percent / 100)
    if (contrast(mixed, background) >= contrastMin) return mixed
  }
  return toward
}

function mix(one: string, other: string, share: number): string {
  const target = channels(other)
  const mixed = channels(one).map((value, i) => value + ((target[i] ?? 0) - value) * share)
  return `#${mixed.map((value) => Math.round(value).toString(16).padStart(2, '0')).join('')}`
}

function luminance(colour: string): number {
  const [red = 0, green = 0, blue = 0] = channels(colour).map((value) => {
    const share = value / 255
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4
  })
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue
}

function channels(colour: string): number[] {
  return [1, 3, 5].map((at) => Number.parseInt(colour.slice(at, at + 2), 16))
}
