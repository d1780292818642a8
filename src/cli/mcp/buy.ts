import type { Hex } from 'viem'
import * as PaymentMeta from '../../gateway/mcp/Payment'
import * as Crypto from '../../protocol/Crypto'
import { encodeJson } from '../../protocol/Header'
import * as Json from '../../protocol/Json'
import { buyByChannel, channelsOf, depositOf, hasChannel } from '../buy/by-channel'
import * as Charge from '../buy/Charge'
import * as Credential from '../buy/Credential'
import { chooseFunded, readBalance } from '../buy/funds'
import * as Terms from '../buy/Terms'
import * as Voucher from '../buy/Voucher'
import { CommandError } from '../Command'
import * as Answer from './Answer'
import { type BuyerOptions, type CallResult, refusal, type Wanted } from './call'
import { createEntitlements, type Entitlements } from './entitlements'
import { settleByChain } from './evidence'
import { GatewayError } from './gateway'
import type { Tool } from './Listing'
import * as Sentences from './Sentences'
import { callIdOf, type Payment, SpendingError, type Stored } from './spending'
import * as Text from './Text'

/** Calls tools and pays for them within the limits. Never signs twice for an unfinished call. */
export function createBuyer(options: BuyerOptions) {
  const { spending, rpc } = options
  const turns = new Map<string, Promise<unknown>>()
  let reconciling: Promise<void> | undefined
  /** Lowers what counts today by what the chain proves. */
  const reconcile = () => {
    reconciling ??= settleByChain(spending, rpc).finally(() => {
      reconciling = undefined
    })
    return reconciling
  }
  const entitlements = createEntitlements(options)
  const context: Context = { ...options, reconcile, entitlements }
  return async (wanted: Wanted, signal: AbortSignal): Promise<CallResult> => {
    if (wanted.name === budgetTool.name) {
      await reconcile()
      return describeBudget(context)
    }
    const id = callIdOf(options, wanted.name, Json.canonicalize(wanted.args))
    try {
      return await inTurn(turns, id, () => answerCall(context, { ...wanted, id, signal }))
    } catch (error) {
      if (error instanceof SpendingError) return refusal(Sentences.stateFails(error.message))
      throw error
    }
  }
}

type Context = BuyerOptions & { reconcile: () => Promise<void>; entitlements: Entitlements }

/** A call of a tool; `id` is the same for equal calls. */
type Call = Wanted & { id: string; signal: AbortSignal }

/** Equal calls run one after the other: the second one must see the payment of the first. */
function inTurn<T>(
  turns: Map<string, Promise<unknown>>,
  key: string,
  run: () => Promise<T>,
): Promise<T> {
  const task = (turns.get(key) ?? Promise.resolve()).then(run, run)
  const forget = () => void (turns.get(key) === task && turns.delete(key))
  turns.set(key, task)
  task.then(forget, forget)
  return task
}

async function answerCall(context: Context, call: Call): Promise<CallResult> {
  const unfinished = context.spending.findUnfinished(call.id)
  if (unfinished && unfinished.scheme !== 'channel') {
    const presented = await present(context, call, unfinished)
    if (!presented.isExpired) return presented
  }
  const answer = await send(context, call)
  if (answer instanceof GatewayError) return refusal(Sentences.unreachable(answer.message))
  if (answer.kind !== 'offers') return withNote(answer.result, '[turnpike] Nothing was paid.')
  const { required, invalidParams } = answer
  if (invalidParams !== '') return refusal(Sentences.invalidArguments(invalidParams))
  const used = await context.entitlements.use({ ...call, required })
  return used ?? buy(context, call, Terms.ofRequired(required))
}

async function buy(
  context: Context,
  call: Call,
  offered: readonly Terms.Terms[],
): Promise<CallResult> {
  const chosen = await choose(context, call, offered)
  if (typeof chosen === 'string') return refusal(chosen)
  if (chosen.scheme === 'channel') {
    try {
      return await buyByVoucher(context, call, chosen)
    } catch (error) {
      if (!(error instanceof CommandError) || error instanceof SpendingError) throw error
      const channel = channelOf(context, call)
      if (channel) return refusal(Sentences.onlyFrom(channel, error.message))
      if (context.scheme === 'channel') return refusal(`${error.message} Nothing was delivered.`)
      // A channel is a convenience: what cannot be bought by it is bought without.
      const others = offered.filter(({ scheme }) => scheme !== 'channel')
      return buy(context, call, others)
    }
  }
  const { privateKey, now } = context
  const random = crypto.getRandomValues(new Uint8Array(32))
  const { value, transfer } = Credential.from(chosen, { privateKey, now: now(), random })
  const reserved = await reserve(context, chosen, {
    ...{ call: call.id, tool: call.name, args: Json.canonicalize(call.args) },
    ...{ nonce: transfer.nonce, validBefore: Number(transfer.validBefore) },
    credential: Buffer.from(value, 'base64').toString(),
  })
  if (typeof reserved === 'string') return refusal(reserved)
  // Another process was faster.
  if (reserved.scheme === 'channel') return refusal(Sentences.onlyFrom(reserved.credential))
  return present(context, call, reserved)
}

/**
 * The channel that alone may pay a call, from the moment at which its first voucher was sent until an
 * answer was served. A refusal ends nothing: a voucher does not expire, so its payee can still claim it.
 */
function channelOf({ spending }: Context, { id }: Call): Hex | undefined {
  const begun = spending.findUnfinished(id)
  return begun?.scheme === 'channel' ? (begun.credential as Hex) : undefined
}

/**
 * Writes a signed payment, or says why the limit of the day forbids it. `amountAtomic`: with a channel,
 * the deposit, or 0 for a call.
 */
async function reserve(
  { spending, limits, payer, now, reconcile }: Context,
  terms: Terms.Terms,
  signed: Pick<Payment, 'call' | 'tool' | 'args' | 'nonce' | 'validBefore' | 'credential'>,
  amountAtomic = terms.amountAtomic,
): Promise<Stored | string> {
  const { network, asset, method, scheme, payTo } = terms
  const payment = {
    ...{ id: crypto.randomUUID(), ...signed, network, asset: asset.address, method, scheme },
    ...{ payer, payee: payTo, signedMicros: amountAtomic },
    amount: Terms.amountOf(terms, amountAtomic || terms.amountAtomic),
  }
  let reserved = spending.reserve(payment, limits.perDayMicros)
  if ('spentMicros' in reserved) {
    await reconcile()
    reserved = spending.reserve(payment, limits.perDayMicros)
  }
  if (!('spentMicros' in reserved)) return reserved
  return Sentences.dayIsSpent(terms, { ...reserved, limits, now: now() })
}

/** The terms to pay, or why none of them is paid. */
async function choose(
  context: Context,
  call: Call,
  offered: readonly Terms.Terms[],
): Promise<Terms.Terms | string> {
  const { limits, scheme = 'channel', network, catalogue, payer, rpc } = context
  const only = channelOf(context, call)
  const payable: Terms.Terms[] = []
  for (const terms of offered) {
    const isByChannel = terms.scheme === 'channel' && scheme === 'channel'
    const isWanted =
      only === undefined
        ? (terms.scheme === 'exact' && context.scheme !== 'channel') ||
          (terms.scheme === 'upto' && scheme === 'upto') ||
          (isByChannel && (await mayUseChannel(context, terms)))
        : terms.scheme === 'channel' && channelsOf({ ...context, terms, only }).length > 0
    if (isWanted && (network === undefined || terms.network === network)) payable.push(terms)
  }
  const wanted = payable.toSorted((a, b) => rankOf(a, scheme) - rankOf(b, scheme))
  if (wanted.length === 0)
    return only ? Sentences.onlyFrom(only) : Sentences.cannotPay(offered, network)
  const [first, ...others] = wanted.filter((each) => each.amountAtomic <= limits.perCallMicros)
  if (first === undefined) return Sentences.tooDear(wanted, limits)
  const terms = await chooseFunded([first, ...others], payer, rpc)
  if (!('asset' in terms)) return Sentences.hasTooLittle(payer, terms)
  const listed = catalogue.priceOf(call.name)
  if (listed !== undefined && terms.amountAtomic > listed) {
    catalogue.notePrice(call.name, terms.amountAtomic)
    return Sentences.dearerThanListed(terms, listed)
  }
  return terms
}

/** Whether a channel has enough left, or limits and wallet allow the deposit. Never rejects. */
async function mayUseChannel(context: Context, terms: Terms.Terms): Promise<boolean> {
  const { payer, scheme, spending, limits, depositMicros, rpc } = context
  if (hasChannel({ ...context, terms })) return true
  const amountAtomic = depositOf(terms, terms.amountAtomic)
  const leftMicros = limits.perDayMicros - spending.today().spentMicros
  if (amountAtomic > depositMicros || amountAtomic > leftMicros) return false
  if (scheme === 'channel') return true
  // By itself it never needs an approve, and never a balance that may be missing.
  if (terms.method !== 'eip3009') return false
  return ((await readBalance(terms.asset, payer, rpc)) ?? 0n) >= amountAtomic
}

/** The wanted scheme first, then what needs no approval. */
function rankOf(terms: Terms.Terms, scheme: Terms.Scheme): number {
  return (terms.scheme === scheme ? 0 : 2) + (terms.method === 'eip3009' ? 0 : 1)
}

/** The answer to one message. */
async function send(
  { gateway }: Context,
  { name, args, signal }: Call,
  meta?: Json.JsonObject,
): Promise<Answer.Answer | GatewayError> {
  const params = { name, arguments: args, ...(meta && { _meta: meta }) }
  try {
    return Answer.of(await gateway.request('tools/call', params, signal))
  } catch (error) {
    if (error instanceof GatewayError) return error
    throw error
  }
}

const waits = { firstMs: 250, mostMs: 2_000 }
const pendingCodes = ['settlement-pending', 'payment-in-progress', 'settlement-reverted']

/** Repeats the same message while the settlement is pending, and when the connection breaks. */
async function ask(
  context: Context,
  call: Call,
  { credential, redeem, id }: Pick<Stored, 'credential' | 'redeem' | 'id'>,
): Promise<Answer.Answer | GatewayError> {
  const { patienceMs, now } = context
  const meta = redeem
    ? { [PaymentMeta.redeemKey]: redeem.token }
    : {
        [PaymentMeta.x402PaymentKey]: JSON.parse(credential) as Json.JsonObject,
        // With the key, a lost answer is sent again instead of being refused as spent.
        [PaymentMeta.idempotencyKey]: id,
      }
  const until = now() + patienceMs
  for (let waitMs = waits.firstMs; ; waitMs = Math.min(2 * waitMs, waits.mostMs)) {
    const answer = await send(context, call, meta)
    const isOpen = answer instanceof GatewayError ? answer.kind === 'lost' : isPending(answer)
    if (!isOpen || call.signal.aborted || now() + waitMs >= until) return answer
    await Bun.sleep(waitMs)
  }
}

function isPending(answer: Answer.Answer): boolean {
  return answer.kind === 'problem' && pendingCodes.includes(answer.problem.code)
}

/** Clocks of chains differ from ours by less. */
const expiryMarginMs = 30_000
const laterCodes = ['not-ready', 'paused', 'budget-spent', 'rate-limited', 'internal-error']
const lostCodes = [
  'redeem-exhausted',
  'invalid-redeem-token',
  'payment-mismatch',
  'idempotency-conflict',
]
const usedReasons = ['invalid_exact_evm_nonce_already_used', 'permit2_invalid_nonce']

/** Presents a signed payment, in the one form that was stored, until its end is known. */
async function present(context: Context, call: Call, payment: Stored): Promise<CallResult> {
  const answer = await ask(context, call, payment)
  if (answer instanceof GatewayError) return failed(context, payment, answer)
  switch (answer.kind) {
    case 'delivered':
      return delivered(context, payment, answer)
    case 'offers': {
      const { code, reason } = answer.problem
      if (code === 'invalid-challenge' && usedReasons.includes(reason))
        return end(context, payment, Sentences.spent(payment))
      return refused(context, payment, answer.problem)
    }
    case 'problem':
      return ofProblem(context, payment, answer.problem)
    case 'free': {
      const text = Json.member(answer.result, 'isError') === true && firstText(answer.result)
      if (text === false) return delivered(context, payment, answer)
      return refused(context, payment, problemOf(text))
    }
  }
}

function failed(context: Context, payment: Stored, error: GatewayError): CallResult {
  if (error.kind === 'refused') return refused(context, payment, problemOf(error.message))
  const text = Sentences.unknown(payment, error.message)
  // Otherwise an answer that can never be read would block this call forever.
  if (error.kind === 'unusable' && isExpired(context, payment)) return end(context, payment, text)
  return refusal(text)
}

function ofProblem(context: Context, payment: Stored, problem: Answer.Problem): CallResult {
  const { code, redeem, transaction, reason } = problem
  if (redeem !== undefined && redeem.attempts > 0) {
    context.spending.update(payment.id, { state: 'redeemable', transaction, redeem })
    return refusal(Sentences.redeemable({ ...payment, redeem }, problem))
  }
  if (redeem !== undefined || lostCodes.includes(code))
    return end(context, payment, Sentences.lost(payment, problem), transaction)
  if (pendingCodes.includes(code)) return refusal(Sentences.pending(payment, problem))
  if (laterCodes.includes(code)) return refusal(Sentences.notNow(payment, problem))
  if (payment.scheme === 'upto' && reason === 'delivery_failed')
    return end(context, payment, Sentences.uncharged(payment, problem))
  return refused(context, payment, problem)
}

/** Gives the payment up for its call. It counts until the chain proves that it is void. */
function end(
  { spending }: Context,
  { id }: Stored,
  text: string,
  transaction?: string | undefined,
): CallResult {
  spending.update(id, { state: 'over', transaction })
  return refusal(text)
}

/** A payment that was refused may still be settled until it expires: no other is signed before. */
function refused(context: Context, payment: Stored, problem: Answer.Problem): CallResult {
  const text = Sentences.refused(payment, problem)
  if (payment.redeem !== undefined || !isExpired(context, payment)) return refusal(text)
  return { ...end(context, payment, text), isExpired: true }
}

function isExpired({ now }: Context, { validBefore }: Stored): boolean {
  return now() > validBefore * 1000 + expiryMarginMs
}

function delivered(
  context: Context,
  payment: Stored,
  answer: { result: Json.JsonObject; settled?: Json.JsonObject | undefined },
): CallResult {
  const { result, settled } = answer
  const transaction = Answer.transactionOf(settled)
  context.spending.update(payment.id, { state: 'delivered', transaction })
  return served(context, payment, result, { paid: paidOf(payment, settled), transaction })
}

/** An answer that was paid for, with what it has cost. */
function served(
  { spending, limits, now, entitlements, catalogue }: Context,
  { tool, call: id }: Pick<Stored, 'tool' | 'call'>,
  result: Json.JsonObject,
  { paid, transaction }: { paid: string; transaction: string | undefined },
): CallResult {
  entitlements.noteBought(tool, id)
  const { spentMicros } = spending.today()
  const pass = catalogue.passOf(tool)
  const cost = Sentences.cost(paid, transaction, { spentMicros, limits, now: now() })
  return withNote(result, cost + (pass === undefined ? '' : Sentences.passSold(pass)))
}

/** A result of the gateway with a last sentence of ours. */
function withNote(result: Json.JsonObject, note: string): CallResult {
  const isError = Json.member(result, 'isError') === true
  const content = [...Answer.contentOf(result), Answer.note(note)]
  return { content, ...(isError && { isError }) }
}

/** The cost of a call: with `upto`, the charge that the gateway names, within the ceiling. */
function paidOf(payment: Stored, settled: Json.JsonObject | undefined): string {
  const { scheme, amount, network, signedMicros } = payment
  if (scheme === 'exact') return `${amount} on ${network}`
  const charge = settled && Charge.ofResponse(encodeJson(settled))
  if (charge === undefined || charge.amountAtomic > signedMicros)
    return `up to ${amount} on ${network}`
  const symbol = amount.split(' ').at(-1)
  const charged = Sentences.dollars(charge.amountAtomic)
  return `${charged} ${symbol} of at most ${amount} on ${network}`
}

function firstText(result: Json.JsonObject): string {
  const [first] = Answer.contentOf(result)
  return typeof first?.text === 'string' ? first.text : ''
}

function problemOf(detail: string): Answer.Problem {
  return { code: 'refused', detail, reason: '', transaction: undefined, redeem: undefined }
}

/**
 * Pays a call by a channel, whose deposit counts as spent until it is refunded. Throws a CommandError
 * when that cannot be done.
 */
function buyByVoucher(context: Context, call: Call, terms: Terms.Terms): Promise<CallResult> {
  const { gateway, spending, limits, depositMicros } = context
  const args = Json.canonicalize(call.args)
  const purchase = {
    ...{ ...context, terms, request: call.id, only: channelOf(context, call) },
    ...{ url: urlOf(terms, gateway.origin), maxAtomic: limits.perCallMicros },
    depositAtomic: undefined,
    /** Counts a deposit against the limit of the day. */
    allow: async ({ amountAtomic, nonce, until }: Voucher.Deposit, channel: Hex) => {
      if (amountAtomic > depositMicros)
        throw new CommandError(Sentences.depositTooHigh(Terms.amountOf(terms, amountAtomic)))
      // An earlier one that has not arrived in its time counts until the chain shows that.
      const earlier = spending.findUnfinished(channel)
      if (earlier) spending.update(earlier.id, { state: 'over' })
      const signed = { call: channel, tool: call.name, args: '', credential: '', nonce }
      const deposit = { ...signed, validBefore: until }
      const reserved = await reserve(context, terms, deposit, amountAtomic)
      if (typeof reserved === 'string') throw new CommandError(reserved)
    },
  }
  return buyByChannel<Answer.Answer | GatewayError, CallResult>(purchase, {
    send: async ({ payment, idempotencyKey }, channel) => {
      const nonce = Crypto.hex(crypto.getRandomValues(new Uint8Array(32)))
      const signed = { call: call.id, tool: call.name, args, nonce, validBefore: 0 }
      const begun = await reserve(context, terms, { ...signed, credential: channel }, 0n)
      if (typeof begun === 'string' || begun.credential !== channel)
        throw new CommandError('Another process pays for this call.')
      const stored = { credential: payment, redeem: undefined, id: idempotencyKey }
      const answer = await ask(context, call, stored)
      return { answer, reply: replyOf(answer) }
    },
    finish: async (answer, { next, chargedAtomic, fault }) => {
      const { settled, end } = replyOf(answer)
      const [amount, transaction] = [Terms.amountOf(terms), Answer.transactionOf(settled)]
      const deposit = spending.findUnfinished(Voucher.idOf(next))
      if (deposit && chargedAtomic !== undefined)
        spending.update(deposit.id, { state: 'delivered', transaction })
      const begun = spending.findUnfinished(call.id)
      if (begun && end === 'served') spending.update(begun.id, { state: 'delivered', transaction })
      if (!('result' in answer) || answer.kind === 'problem') {
        if (fault) return refusal(Sentences.disbelieved(fault, amount))
        const said = 'problem' in answer ? Sentences.said(answer.problem) : answer.message
        const { takenAtomic = 0n } = next.sent.find(({ request }) => request === call.id) ?? {}
        const taken = takenAtomic > 0n ? Terms.amountOf(terms, takenAtomic) : undefined
        return refusal(Sentences.notByChannel(said, amount, end === 'unknown', taken))
      }
      const charged =
        chargedAtomic === undefined ? `up to ${amount}` : Terms.amountOf(terms, chargedAtomic)
      const left = Terms.amountOf(terms, Voucher.restOf(next))
      const bought = { tool: call.name, call: call.id }
      const paid = Sentences.fromChannel(`${charged} on ${terms.network}`, left)
      return served(context, bought, answer.result, { paid, transaction })
    },
  })
}

/** The address of a tool over HTTP, where the rest of a channel is asked for. */
function urlOf({ source }: Terms.Terms, origin: string): string {
  const named = source.kind === 'x402' && source.resource && Json.text(source.resource, 'url')
  const url = URL.parse(named || '')
  return url === null ? origin : new URL(url.pathname + url.search, origin).href
}

function replyOf(answer: Answer.Answer | GatewayError): Voucher.Reply {
  const settled = 'settled' in answer ? answer.settled : undefined
  const required = 'required' in answer ? answer.required : undefined
  const isOpen = answer instanceof GatewayError ? answer.kind !== 'refused' : isPending(answer)
  const isFault = 'result' in answer && Json.member(answer.result, 'isError') === true
  const isServed = answer.kind === 'delivered' || (answer.kind === 'free' && !isFault)
  return { settled, required, end: isServed ? 'served' : isOpen ? 'unknown' : 'refused' }
}

/** The tool that reports what the wallet may still spend. */
export const budgetTool: Tool = {
  name: 'turnpike_budget',
  title: 'What the wallet may spend',
  description:
    'Says what was spent today, the limits, when they reset, and which calls were paid and not ' +
    'answered yet. Costs nothing.',
  inputSchema: { type: 'object', properties: {}, additionalProperties: false },
  annotations: { readOnlyHint: true, destructiveHint: false, openWorldHint: true },
}

const argumentsMax = 400
const unfinishedMax = 10

/** What the wallet has spent and may spend. */
function describeBudget(context: Context): CallResult {
  const { spending, limits, payer, gateway, now, entitlements } = context
  const { spentMicros, payments } = spending.today()
  const left = limits.perDayMicros - spentMicros
  // The file is shared: calls at other gateways count, but only those of this gateway are listed.
  const isOwn = ({ call, tool, args }: Stored) => call === callIdOf(context, tool, args)
  const unfinished = spending.unfinished().filter(isOwn).slice(0, unfinishedMax)
  const lines = [
    `The wallet ${payer} pays for the tools of ${gateway.origin}.`,
    `Limits: ${limits.perCall} USD for one call, ${limits.perDay} USD a day (UTC).`,
    `Today: ${Sentences.dollars(spentMicros)} USD in ${payments} payments, ` +
      `${Sentences.dollars(left > 0n ? left : 0n)} USD left. Resets at ${Sentences.resetOf(now())}.`,
    ...unfinished.map(describeUnfinished),
    ...entitlements.describe(),
  ]
  return { content: [Answer.note(lines.join('\n'))] }
}

function describeUnfinished({ state, tool: name, args, amount }: Stored): string {
  const what = state === 'redeemable' ? 'paid and not delivered' : 'signed, its end is not known'
  return (
    `Unfinished, ${what}: ${name} with ${Text.line(args, argumentsMax)}, ${amount}. The same call ` +
    'costs nothing more.'
  )
}
