import type { Merchant, NetworkConfig, Route } from '../config/Config'
import * as Price from '../meter/Price'
import * as Amount from '../protocol/Amount'
import { type Html, html } from './html'

/** Small parts that several pages have. */

/** `plain` says nothing about the state. */
export type Tone = 'good' | 'fair' | 'bad' | 'plain'

/** A state as text; its colour only repeats the text. */
export function badge(tone: Tone, text: string): Html {
  return html`<span class="badge ${tone}">${text}</span>`
}

/** At least two decimals, without further trailing zeros. */
export function dollars(atomic: bigint, decimals = 6): string {
  return Amount.toShort(atomic, decimals)
}

/** The lowest price of routes: `from $0.005`, or `$0.01` when all have this one. */
export function priceFrom(routes: readonly Route[]): string {
  const [cheapest, ...others] = [...routes].sort((a, b) => Number(a.priceAtomic - b.priceAtomic))
  if (cheapest === undefined) return ''
  const prices = new Set(routes.map((route) => Price.short(route)))
  return others.length > 0 && prices.size > 1 && cheapest.meter === undefined
    ? `from ${Price.short(cheapest)}`
    : Price.short(cheapest)
}

/** An address or a hash in its short form, with a button that copies the whole. */
export function address(whole: string): Html {
  return html`<span class="address"><code title="${whole}">${shortened(whole)}</code>${copyButton(`Copy ${shortened(whole)}`, whole)}</span><code class="scriptless">${whole}</code>`
}

function shortened(text: string): string {
  return text.length < 16 ? text : `${text.slice(0, 6)}\u2026${text.slice(-4)}`
}

/** A path with its query, in which a line may break before each part. */
export function breakable(target: string): Html[] {
  return target.split(/(?=[/?&,])/).map((part, at) => html`${at > 0 && html`<wbr>`}${part}`)
}

/** Copies a text; without one, the code beside it. Hidden in a browser without scripts. */
export function copyButton(label: string, text?: string): Html {
  const data = text === undefined ? undefined : html` data-copy="${text}"`
  return html`<button type="button" class="copy" aria-label="${label}"${data}>Copy</button>`
}

/** A command in a box of its own. `data`: attributes of its code. */
export function command(name: string, text: string, data?: Html): Html {
  return html`<div class="command"><pre tabindex="0" aria-label="${name}"><code${data}>${text}</code></pre>${copyButton(`Copy ${name}`)}</div>`
}

/** `USDC on Base`. */
export function coinOn({ asset, name, testnet }: NetworkConfig): string {
  return `${asset.symbol} on ${name}${testnet ? ' (test money)' : ''}`
}

/** The networks of a merchant in the order of the file. */
export function networksOf(
  networks: readonly NetworkConfig[],
  merchant: Merchant,
): readonly NetworkConfig[] {
  return networks.filter(({ id }) => merchant.networks.includes(id))
}

/**
 * The network on which programs pay in samples: one with real money, and rather one where a wallet
 * needs no approval.
 */
export function sampleNetwork(networks: readonly NetworkConfig[]): NetworkConfig | undefined {
  const rank = ({ testnet, asset }: NetworkConfig) =>
    (testnet ? 2 : 0) + (asset.transfer[0] === 'eip3009' ? 0 : 1)
  return [...networks].sort((a, b) => rank(a) - rank(b))[0]
}

/** `1 route`, `2 routes`. */
export function count(number: number, noun: string): string {
  return `${number} ${noun}${number === 1 ? '' : 's'}`
}

/** Links to the pages of a list; none for one page. `linkTo` gives the address of a page. */
export function pager(
  label: string,
  { current, pages }: Pages,
  linkTo: (page: number) => string,
): Html | false {
  if (pages === 1) return false
  const link = (page: number, name: string) =>
    html`<li><a class="button" href="${linkTo(page)}">${name}</a></li>`
  return html`<nav class="pager" aria-label="${label}"><ul>${
    current > 1 && link(current - 1, 'Previous page')
  }<li class="quiet">Page ${current} of ${pages}</li>${
    current < pages && link(current + 1, 'Next page')
  }</ul></nav>`
}

export type Pages = { current: number; pages: number }

/** The part of a list that is on a page, and the number of the nearest page that exists. */
export function pageOf<T>(
  list: readonly T[],
  page: number,
  length: number,
): Pages & { shown: readonly T[] } {
  const pages = Math.max(1, Math.ceil(list.length / length))
  const wanted = Number.isSafeInteger(page) ? page : 1
  const current = Math.min(Math.max(1, wanted), pages)
  return { shown: list.slice((current - 1) * length, current * length), current, pages }
}
