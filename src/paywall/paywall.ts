import * as Problem from '../protocol/Problem'
import type { Outcome, Payment, Purpose } from '../settlement/Payment'
import type { ApprovalSponsor } from '../settlement/Sponsorship'
import type { Settlement } from '../settlement/settle'
import { settleSponsored } from '../settlement/sponsored'
import { choose } from './choose'
import { mayContinue } from './continuation'
import { type Presentation, present } from './credential'
import * as Denial from './Denial'
import { createCourier, type Fulfilment } from './delivery'
import type { Presented } from './extract'
import { bodyDigest, fingerprint } from './fingerprint'
import type { Item } from './Item'
import { idempotencyKey } from './idempotency'
import type { PaceMin } from './pace'
import type { ChallengeDetails, Quoter } from './quote'
import { failingOf, failureHeaders, receiptUrl } from './receipts'
import type { Envelope } from './rest'
import type { Answers } from './store'

/** A request for something that is sold. */
export type Sale = {
  item: Item
  /** As requested: HEAD stays HEAD. */
  method: string
  /** Canonical path and query, as forwarded. */
  path: string
  search: string
  headers: Headers
  /** What `extract` found among the headers. */
  presented: Presented
  body: Uint8Array
  /** Absolute URL of what is bought, for receipts. */
  resource: string
  requestId: string
  /** Fires when the buyer leaves. */
  signal: AbortSignal
  /** Passes the answer on inside a message; undefined when the response is sent as it is. */
  envelope?: Envelope | undefined
  /** Parameters that cannot be served; named in the 402, refused before money moves. */
  invalidParams: readonly { name: string; reason: string; status?: 404 }[]
  /** Why nothing can be delivered now; asked before a payment. A promise only while unknown. */
  unavailable(): Problem.ProblemError | undefined | Promise<Problem.ProblemError | undefined>
  /**
   * Takes a place for the sale, until the result is called. Throws ProblemError when all are taken:
   * nothing may be charged that could not be forwarded.
   */
  reserve(): () => void
  /** Makes what was bought. */
  fulfil: Fulfilment
}

export type PaywallOptions = {
  quoter: Quoter
  settlement: Settlement
  /** Sends the approves that payers sign; undefined when nobody does. */
  sponsor: ApprovalSponsor | undefined
  answers: Answers
  challengeSecrets: readonly Uint8Array[]
  receiptKey: Uint8Array
  realm: string
  /** Longest wait of a buyer for the confirmation. */
  settleWaitMs: number
  /** Of buyers that read a stream. */
  paceMin?: Partial<PaceMin> | undefined
  now: () => number
  log: (event: string, fields: Readonly<Record<string, unknown>>) => void
}

export type Paywall = {
  /** The 402 for a request without a credential. Throws ProblemError when nothing can settle. */
  ask(item: Item, url: string, requestId: string, details: ChallengeDetails): Response
  /** Sells to a request that presents something. Throws ProblemError. */
  serve(sale: Sale): Promise<Response>
  /** Answers and settlements under way. */
  inFlight(): number
  /** Gives up what is still read for buyers that have left. */
  stop(): void
}

/** The paid path, for whatever is sold. */
export function createPaywall(options: PaywallOptions): Paywall {
  const { quoter, settlement, now, log } = options
  const courier = createCourier(options)
  const reservations = new Set<string>()
  let active = 0

  return {
    inFlight: () => active + courier.inFlight(),
    stop: courier.stop,
    ask,
    serve(sale) {
      const { presented } = sale
      active++
      const answer =
        presented.kind === 'redeem' ? redeem(sale, presented.token) : buy(sale, presented)
      return answer.finally(() => active--)
    },
  }

  function challenge(sale: Sale, details: ChallengeDetails): Response {
    const unavailable = sale.unavailable()
    // A 402 does not wait for the lookup.
    if (unavailable instanceof Problem.ProblemError) throw unavailable
    return ask(sale.item, sale.resource + sale.search, sale.requestId, details)
  }

  function ask(item: Item, url: string, requestId: string, details: ChallengeDetails): Response {
    const response = quoter.challenge(item, url, requestId, details)
    if (response === undefined) throw Denial.noNetwork(quoter.whyNone(item))
    return response
  }

  async function buy(sale: Sale, presented: Presented): Promise<Response> {
    const url = sale.resource + sale.search
    const takesApprovals = options.sponsor !== undefined
    const digest = bodyDigest(sale.body)
    const context = { ...options, item: sale.item, url, digest, takesApprovals }
    let presentation: Presentation | undefined
    try {
      presentation = await choose(settlement, present(presented, context))
      return await spend(sale, presentation)
    } catch (error) {
      if (!(error instanceof Problem.ProblemError)) throw error
      return refuse(sale, presented, presentation, error)
    }
  }

  /** Answers a problem in the terms of the protocol that the buyer speaks. */
  function refuse(
    sale: Sale,
    presented: Presented,
    presentation: Presentation | undefined,
    problem: Problem.ProblemError,
  ): Response {
    const headers =
      presented.kind === 'x402' && problem.headers['payment-response'] === undefined
        ? failureHeaders(problem, presentation?.transfer ?? failingOf(presented, sale.item.offers))
        : {}
    if (problem.status === 402)
      return challenge(sale, { digest: bodyDigest(sale.body), refusal: { problem, headers } })
    throw Problem.withHeaders(problem, headers)
  }

  async function spend(sale: Sale, presentation: Presentation): Promise<Response> {
    const { transfer } = presentation
    const key = idempotencyKey(sale.headers, presentation.identifier)
    const claim = settlement.claim(transfer)
    if (claim === undefined) throw Denial.inProgress()
    let held = true
    const release = () => {
      if (held) claim.release()
      held = false
    }
    try {
      const print = fingerprint(sale.method, sale.path, sale.search, bodyDigest(sale.body))
      const known = settlement.find(transfer)
      if (known !== undefined) return await comeBack(sale, presentation, known, print, key, release)
      return await payNow(sale, presentation, print, key, release)
    } catch (error) {
      release()
      throw error
    }
  }

  async function payNow(
    sale: Sale,
    presentation: Presentation,
    print: string,
    key: string | undefined,
    release: () => void,
  ): Promise<Response> {
    const { transfer } = presentation
    if (presentation.window !== undefined)
      throw Problem.ofFault(presentation.window, 'payment-expired')
    // Read once: each time looks through the whole body.
    const { invalidParams } = sale
    if (invalidParams.length > 0) throw Denial.invalidParameters(invalidParams)
    if (key === undefined) return settle(sale, presentation, print, undefined, release)

    // Only the payer itself may find or hold its key: without this proof anybody could squat it.
    if (!presentation.isProven()) {
      const verdict = await settlement.verify(transfer)
      if (!('ok' in verdict)) return conclude(sale, presentation, verdict, release)
    }
    const scope = `${sale.item.merchant}\n${sale.item.route}\n${transfer.payer}\n${key}`
    if (reservations.has(scope)) throw Denial.inProgress()
    reservations.add(scope)
    try {
      const repeat = await earlier(sale, presentation, print, key, release)
      if (repeat !== undefined) return repeat
      const free = options.answers.reserve(transfer.payer, now())
      if (free === undefined) throw Denial.storeFull()
      const done = () => {
        release()
        free()
      }
      return await settle(sale, presentation, print, key, done).catch((error) => {
        free()
        throw error
      })
    } finally {
      reservations.delete(scope)
    }
  }

  /** What the same idempotency key of the same payer already bought, if anything. */
  async function earlier(
    sale: Sale,
    presentation: Presentation,
    print: string,
    key: string,
    release: () => void,
  ): Promise<Response | undefined> {
    const { merchant, route } = sale.item
    const { payer } = presentation.transfer
    const payment = settlement.findByIdempotencyKey({ merchant, route, payer, key })
    if (payment === undefined) return undefined
    if (payment.purpose.fingerprint !== print)
      throw Denial.keyConflict('was used for another request')
    const stored = options.answers.find(payment.id, now())
    if (stored !== undefined) {
      release()
      return courier.replay(stored, payment, presentation.protocol)
    }
    const claim = settlement.claim(payment.transfer)
    if (claim === undefined) throw Denial.inProgress()
    if (payment.delivery === 'delivered') {
      claim.release()
      throw Denial.keyConflict('has an answer that is no longer stored')
    }
    // The credential just presented stays unspent: the money of the first one pays.
    release()
    return pursue(sale, presentation, payment, claim.release)
  }

  async function settle(
    sale: Sale,
    presentation: Presentation,
    print: string,
    key: string | undefined,
    release: () => void,
  ): Promise<Response> {
    const state = sale.unavailable()
    const isReady = settlement.isReady(presentation.transfer.network)
    const unavailable =
      (state instanceof Promise ? await state : state) ??
      (isReady ? undefined : Denial.networkAway())
    if (unavailable !== undefined) {
      if (presentation.bound) settlement.noteShown(presentation.transfer)
      throw unavailable
    }
    const { item } = sale
    const purpose: Purpose = {
      product: 'gateway',
      protocol: presentation.protocol,
      merchant: item.merchant,
      route: item.route,
      fingerprint: print,
      resource: receiptUrl(sale.resource, item),
      idempotencyKey: key,
      challengeId: presentation.challengeId,
      credentialHash: presentation.credentialHash,
      bound: presentation.bound,
    }
    const { transfer, approval } = presentation
    return withPlace(sale, release, async (done) => {
      const outcome = await settleSponsored(options, transfer, approval, purpose, {
        waitMs: options.settleWaitMs,
        receivedAt: now(),
        proven: presentation.isProven,
        requestId: sale.requestId,
        onSent: courier.expect,
        // A payment that needs a second node is not delivered on the first node's word.
        beginsDelivery: () =>
          !sale.signal.aborted && !settlement.needsSecond({ transfer, purpose }),
      })
      return conclude(sale, presentation, outcome, done)
    })
  }

  /** Runs a sale in a place of its own, which is given back with the claim or when the sale fails. */
  async function withPlace(
    sale: Sale,
    release: () => void,
    run: (done: () => void) => Promise<Response>,
  ): Promise<Response> {
    const free = sale.reserve()
    const done = () => {
      free()
      release()
    }
    try {
      return await run(done)
    } catch (error) {
      free()
      throw error
    }
  }

  async function comeBack(
    sale: Sale,
    presentation: Presentation,
    payment: Payment,
    print: string,
    key: string | undefined,
    release: () => void,
  ): Promise<Response> {
    // A contract's signature has been judged by the chain: here it must be the one that was.
    if (presentation.transfer.signature !== payment.transfer.signature && !presentation.isProven())
      throw Denial.verificationFailed(
        presentation.signatureReason,
        'The signature is not of the payer.',
      )
    const { fingerprint: paidFor, protocol, idempotencyKey: reserved } = payment.purpose
    if (key !== undefined && key === reserved) {
      if (paidFor !== print) throw Denial.keyConflict('was used for another request')
      const stored = options.answers.find(payment.id, now())
      if (stored !== undefined) {
        release()
        return courier.replay(stored, payment, presentation.protocol)
      }
    }
    if (payment.delivery === 'delivered') throw Denial.spent(payment)
    // Not 402: the money is on its way or has arrived, and still buys what it was paid for.
    if (paidFor !== print || protocol !== presentation.protocol)
      throw Denial.mismatch('The credential pays for another request.')
    if (!mayContinue(payment, { ...presentation, key })) throw Denial.otherCredential()
    // The buyer got a redeem token, so the credential does not continue this payment.
    if (courier.wasAnswered(payment) && payment.attempts > 0 && presentation.protocol === 'x402')
      throw Denial.spent(payment)
    return pursue(sale, presentation, payment, release)
  }

  /** Drives a known payment on from whatever state it is in. */
  async function pursue(
    sale: Sale,
    presentation: Pick<Presentation, 'protocol' | 'transfer'>,
    payment: Payment,
    release: () => void,
  ): Promise<Response> {
    try {
      return await withPlace(sale, release, async (done) => {
        const outcome: Outcome =
          payment.state === 'confirmed'
            ? { kind: 'confirmed', payment }
            : await settlement.resume(payment, presentation.transfer, {
                waitMs: options.settleWaitMs,
                requestId: sale.requestId,
              })
        return conclude(sale, presentation, outcome, done)
      })
    } catch (error) {
      release()
      throw error
    }
  }

  async function conclude(
    sale: Sale,
    presentation: Pick<Presentation, 'protocol' | 'transfer'>,
    outcome: Outcome,
    release: () => void,
  ): Promise<Response> {
    if (outcome.kind === 'confirmed') {
      const { payment } = outcome
      if (settlement.needsSecond(payment) && !(await settlement.confirmTwice(payment)))
        throw Denial.unpaid({ kind: 'pending', payment }, payment.transfer.network)
      return courier.deliver(sale, outcome, presentation.protocol, release)
    }
    if (outcome.kind === 'dead')
      log('payment-dead', {
        requestId: sale.requestId,
        payment: outcome.payment?.id,
        reason: outcome.reason,
      })
    throw Denial.unpaid(outcome, presentation.transfer.network)
  }

  async function redeem(sale: Sale, token: string): Promise<Response> {
    const payment = courier.findByToken(token)
    if (payment === undefined)
      throw Problem.of('invalid-redeem-token', 'Payment-Redeem is not a token of this service.')
    const claim = settlement.claim(payment.transfer)
    if (claim === undefined) throw Denial.inProgress()
    try {
      const print = fingerprint(sale.method, sale.path, sale.search, bodyDigest(sale.body))
      const { merchant, route, fingerprint: paidFor, protocol } = payment.purpose
      if (merchant !== sale.item.merchant || route !== sale.item.route || paidFor !== print)
        throw Denial.mismatch('The token belongs to another request.')
      const current = settlement.findById(payment.id) ?? payment
      const { transfer } = payment
      return await pursue(sale, { protocol, transfer }, current, claim.release)
    } catch (error) {
      claim.release()
      throw error
    }
  }
}
