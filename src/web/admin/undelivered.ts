import type { Payment } from '../../../db/Payment'
import type { Config } from '../../config/Config'
import { attemptsMax, isExhausted } from '../../paywall/answer/undelivered'
import { type Html, html } from '../html'
import type { Names } from './names'
import { badge, time } from './parts'

/** Whether a confirmed payment at the gateway has no delivered answer. */
export function isUndelivered({ state, delivery, purpose }: Payment): boolean {
  return state === 'confirmed' && purpose.product === 'gateway' && delivery !== 'delivered'
}

/**
 * Until when a buyer can fetch an answer, unix ms; `until` is undefined before a limit is set. Undefined
 * when it can no longer be fetched.
 */
export function openUntil(
  payment: Payment,
  now: number,
): { until: number | undefined } | undefined {
  const { redeemUntil: until } = payment
  return isExhausted(payment) || (until !== undefined && until <= now) ? undefined : { until }
}

/** Why an answer is missing and what can be done, for the top of its story. */
export function undeliveredNotice(
  payment: Payment,
  { config, names, now }: { config: Config; names: Names; now: number },
): Html {
  const { merchant: slug } = payment.purpose
  const merchant = config.merchants.find((each) => each.slug === slug)
  const open = openUntil(payment, now)
  return html`<section class="card todo" aria-labelledby="todo">
<h2 id="todo">${badge('bad', 'not delivered')} ${reasonOf(payment)}</h2>
${open === undefined ? lostText(payment, names) : openText(payment, open.until)}
${causeOf(payment)}
<div class="row">
${merchant !== undefined && html`<a class="button second" href="/admin/merchants#${slug}">See the state of ${merchant.title}</a>`}
${merchant !== undefined && html`<a href="/admin/actions/pause?subject=merchant:${slug}">Pause sales of ${merchant.title} until it works</a>`}
</div>
</section>`
}

/** What the ledger knows of the last attempt, as a sentence. */
export function reasonOf({ delivery, attempts, upstreamStatus }: Payment): string {
  if (attempts === 0)
    return 'The upstream was not asked yet. Usually the request ended before the confirmation.'
  const tries = attempts === 1 ? 'the only attempt' : `the last of ${attempts} attempts`
  if (delivery === 'delivering')
    return `An attempt (number ${attempts}) is running, or a crash ended it.`
  if (upstreamStatus === undefined)
    return `The upstream did not answer ${tries}: it was unreachable, too slow, or broke off.`
  if (upstreamStatus < 300)
    return `The upstream answered ${tries} with ${upstreamStatus}, but broke its answer off.`
  return `The upstream answered ${tries} with ${upstreamStatus}.`
}

/** The usual cause of a status of the upstream, and what to check. */
function causeOf({ attempts, delivery, upstreamStatus: status }: Payment): Html | false {
  if (attempts === 0 || delivery === 'delivering') return false
  const cause = (text: string) => html`<p class="quiet">${text}</p>`
  if (status === undefined)
    return cause('Check that the upstream runs and that this machine reaches it.')
  if (status === 401 || status === 403)
    return cause('The upstream refuses our credentials: check the headers of the merchant.')
  if (status === 402) return cause('The upstream itself wants money: check your account there.')
  if (status === 429 || status === 425)
    return cause('The upstream limits our requests: check your quota there.')
  if (status >= 300 && status < 400)
    return cause('The upstream redirects: write its new address into the file, and reload.')
  return cause('Check the log of the upstream at the time below.')
}

function openText(payment: Payment, until: number | undefined): Html {
  const { attempts, redeemTokenHash, answered } = payment
  const left = Math.max(1, attemptsMax - attempts)
  const hasToken = redeemTokenHash !== undefined && answered
  const how = hasToken
    ? 'The buyer has a redeem token and fetches the answer without paying again'
    : 'The buyer fetches the answer by sending the same credential again'
  return html`<p><strong>To do: repair the upstream.</strong> ${how}${until !== undefined && html` until ${time(until)}`}, up to ${left} more ${left === 1 ? 'time' : 'times'}. The service does not ask the upstream by itself.</p>`
}

function lostText({ transfer, attempts, redeemUntil }: Payment, names: Names): Html {
  const { network, payer, amountAtomic } = transfer
  const why =
    redeemUntil !== undefined && attempts < attemptsMax
      ? html`The time to fetch it ended at ${time(redeemUntil)}.`
      : 'All attempts to fetch it are used.'
  return html`<p><strong>To do: send ${names.amount(amountAtomic, transfer)} on ${names.network(network)} back</strong> to <code class="hash">${payer}</code>, by hand from your own wallet.</p>
<p>${why} The service does not refund this payment, and does not record that you did.</p>`
}
