import type { Address } from 'viem'
import type { AuthorizationLedger, Buyer, Loss } from '../../../db/authorizations'
import type { LaneLedger } from '../../../db/LaneLedger'
import type { WriteEvent } from '../../log'
import * as Amount from '../../protocol/Amount'
import { dayMs, hourMs } from '../../protocol/Time'
import * as Refusals from '../read/refusals'
import { createDebts } from '../state/debts'

/*
 * By `upto` a merchant works before it is paid. Its risk with a payer is what is open and what was lost,
 * less what that payer has paid to this merchant. The risk is limited for each payer, and for all payers
 * of a merchant together within a day. It is counted before a request is forwarded, so that wallets
 * that ask at the same time cannot exceed the limit together.
 */

/** The limits of a merchant, atomic. */
export type CreditLimits = {
  /** Risk with one payer: what is open, and what was lost within an hour. */
  payerAtomic: bigint
  /** Risk with all payers: what is open, and what was lost within a day. */
  dayAtomic: bigint
  /** Whether a stream to a payer that never paid to the merchant waits for its charge. */
  holdsNew: boolean
}

/** A payer at a merchant, and the address that its request came from. */
export type Debtor = Buyer & { client: string | undefined }

type BuyerOf = Pick<Buyer, 'payer' | 'merchant'>

export type Credit = ReturnType<typeof createCredit>

type CreditOptions = {
  ledger: Pick<AuthorizationLedger, 'lossesSince' | 'standingOf'>
  lanes: Pick<LaneLedger, 'isShared' | 'gateways'>
  /** Undefined: nothing is limited. */
  limitsOf: (merchant: string) => CreditLimits | undefined
  /** Unix ms. */
  now: () => number
  log: WriteEvent
}

/** Time between two log lines about the same merchant, ms. */
const quietMs = hourMs
/** Age at which what other processes may have changed is read again, ms. */
const staleMs = 60_000
/** Payers without risk of which the standing is kept, at each merchant. */
const accountsMax = 10_000
/**
 * Answers that cost nothing, of one payer and of one address, within ten minutes. A request may be what makes
 * an upstream fail, such as a text that its filters refuse near the end of the answer. After a few of these the
 * key waits, or it would have the work of the upstream for nothing.
 */
const unpaidMax = { payer: 5, client: 30 }
const unpaidWindowMs = 600_000

/** One payer at one merchant. */
function createAccount() {
  return {
    /** At least this much was paid, by network. */
    paid: new Map<string, { atomic: bigint; readAt: number }>(),
    /** What it has signed for other payers since the start. */
    signedAtomic: 0n,
    /** All that was ever lost, with what this process has added since it was read. */
    lostAtomic: 0n,
    openAtomic: 0n,
    /** Losses within a day, and their sum. */
    losses: new Set<Loss>(),
    dayAtomic: 0n,
    /** What it adds to the risk of the merchant, and the part of it that is not open. */
    riskAtomic: 0n,
    lossAtomic: 0n,
  }
}

type Account = ReturnType<typeof createAccount> & { book: Book }

/** `isOwn`: this process has caused it, or has found it at its start. */
type Counted = { loss: Loss; account: Account; isOwn: boolean }

/** One merchant. */
function createBook() {
  return {
    accounts: new Map<Address, Account>(),
    /** Sums of the accounts: strangers cause accounts, and each request needs the sums. */
    riskAtomic: 0n,
    lossAtomic: 0n,
    /** Losses within a day that are own ones. */
    ownAtomic: 0n,
    spentLoggedAt: undefined as number | undefined,
  }
}

type Book = ReturnType<typeof createBook>

type State = CreditOptions & {
  books: Map<string, Book>
  /** Oldest first. */
  losses: Map<string, Counted>
  loaded: Promise<void> | undefined
}

export function createCredit(options: CreditOptions) {
  const { now, limitsOf } = options
  const state: State = { ...options, books: new Map(), losses: new Map(), loaded: undefined }
  const payers = createDebts(now, unpaidMax.payer, unpaidWindowMs)
  const clients = createDebts(now, unpaidMax.client, unpaidWindowMs)
  return {
    /** Reads what is known of a payer, unless it is known to have paid enough for this ceiling. */
    async read(debtor: Debtor, ceilingAtomic: bigint): Promise<void> {
      if (limitsOf(debtor.merchant) === undefined) return
      state.loaded ??= load(state, false)
      await state.loaded
      await readStanding(state, debtor, ceilingAtomic)
    },
    /**
     * Why a ceiling would be too much; undefined when it may be opened. No I/O. Call `read` before.
     * `isSecured`: its money is there, as in a channel, so it may be above the limits itself. It counts for
     * those that follow, because its answer may fail.
     */
    refuse(
      debtor: Debtor,
      ceilingAtomic: bigint,
      { isSecured = false } = {},
    ): Refusals.PaymentRefusal | undefined {
      const { payer, client, merchant } = debtor
      const limits = limitsOf(merchant)
      const isCovered = limits !== undefined && covers(state, debtor, ceilingAtomic)
      // Strangers may share the address, and a payer that has paid for a failure cannot win by it.
      const ofClient = isCovered || client === undefined ? 0 : clients.waitSeconds(client)
      const waitSeconds = Math.max(payers.waitSeconds(payer), ofClient)
      if (waitSeconds > 0) return Refusals.oftenUnpaid(waitSeconds)
      if (limits === undefined || isCovered) return undefined
      return refuse(state, debtor, isSecured ? 0n : ceilingAtomic, limits)
    },
    /** Counts a ceiling as open until the result is called. In the same turn as `refuse`. */
    open(buyer: BuyerOf, ceilingAtomic: bigint): () => void {
      const account = accountOf(state, buyer)
      const add = (atomic: bigint) => {
        account.openAtomic += atomic
        update(account)
      }
      add(ceilingAtomic)
      let isOpen = true
      return () => {
        if (isOpen) add(-ceilingAtomic)
        isOpen = false
      }
    },
    /** Whether a payer has paid to the merchant, as far as `read` has shown. No I/O. */
    hasPaid: (buyer: BuyerOf): boolean => hasPaid(state, buyer),
    /** Whether a stream to this payer waits for its charge. */
    holdsStream: (buyer: BuyerOf): boolean =>
      limitsOf(buyer.merchant)?.holdsNew === true && !hasPaid(state, buyer),
    /** A voucher was charged whose payment the ledger has under another payer than its signer. */
    countSigned(buyer: BuyerOf, atomic: bigint): void {
      const account = accountOf(state, buyer)
      account.signedAtomic += atomic
      update(account)
    },
    /** A forwarded request was not paid for. */
    lose(id: string, { merchant, payer }: BuyerOf, atomic: bigint): void {
      addLoss(state, { id, merchant, payer, atomic, at: now() }, true)
    },
    /** A request ended without a charge; the next ones of its payer and its client may have to wait. */
    countUnpaid(payer: Address, client: string | undefined): void {
      payers.add(payer)
      if (client !== undefined) clients.add(client)
    },
    /** An answer was charged, which ends one of the failures. */
    countCharged(payer: Address, client: string | undefined): void {
      payers.takeBack(payer)
      if (client !== undefined) clients.takeBack(client)
    },
    /** What counted as lost was settled after all. */
    recover(id: string): void {
      const counted = state.losses.get(id)
      if (counted === undefined) return
      counted.account.lostAtomic -= counted.loss.atomic
      drop(state, counted)
    },
    /** Reads the losses that other processes have written. */
    async refresh(): Promise<void> {
      if (state.lanes.isShared && state.loaded !== undefined) await load(state, true)
    },
    /** Risk by merchant, atomic. */
    risks(): ReadonlyMap<string, bigint> {
      expire(state)
      return new Map([...state.books].map(([merchant, { riskAtomic }]) => [merchant, riskAtomic]))
    },
  }
}

function hasPaid({ books }: State, { merchant, payer }: BuyerOf): boolean {
  const account = books.get(merchant)?.accounts.get(payer)
  return account !== undefined && paidOf(account) > 0n
}

async function load(state: State, isAgain: boolean): Promise<void> {
  try {
    for (const loss of await state.ledger.lossesSince(state.now() - dayMs))
      addLoss(state, loss, !isAgain)
  } catch (error) {
    // The next request reads them: without them more could be lost than the limit.
    if (!isAgain) state.loaded = undefined
    throw error
  }
}

/** Reads the standing of a payer. What covers a ceiling is not read again: a payer pays more, not less. */
async function readStanding(state: State, debtor: Debtor, ceilingAtomic: bigint): Promise<void> {
  const { ledger, lanes, now } = state
  const { network, merchant, payer } = debtor
  const paid = state.books.get(merchant)?.accounts.get(payer)?.paid.get(network)
  const isStale = !paid || (lanes.isShared && now() - paid.readAt > staleMs)
  if (!isStale && covers(state, debtor, ceilingAtomic)) return
  const { paidAtomic, lostAtomic } = await ledger.standingOf(debtor)
  const account = accountOf(state, debtor)
  account.paid.set(network, { atomic: paidAtomic, readAt: now() })
  // A loss of this moment may not be written yet.
  if (lostAtomic > account.lostAtomic) account.lostAtomic = lostAtomic
  update(account)
}

/** Whether what a payer has paid covers a ceiling, and all that is open and was lost. */
function covers(state: State, debtor: Debtor, ceilingAtomic: bigint): boolean {
  const account = accountOf(state, debtor)
  return shortOf(account, account.openAtomic + ceilingAtomic) <= 0n
}

function refuse(
  state: State,
  debtor: Debtor,
  ceilingAtomic: bigint,
  { payerAtomic, dayAtomic }: CreditLimits,
): Refusals.PaymentRefusal | undefined {
  expire(state)
  const account = accountOf(state, debtor)
  const { book } = account
  // What is secured adds nothing, and needs a limit that is not reached.
  const added = riskOf(account, account.openAtomic + ceilingAtomic) - account.riskAtomic || 1n
  const lately = latelyLost(state, account)
  const risk = (openAtomic: bigint) => riskOf(account, openAtomic, lately)
  if (risk(ceilingAtomic) > payerAtomic) return Refusals.creditExceeded(payerAtomic)
  if (risk(account.openAtomic + ceilingAtomic) > payerAtomic) return Refusals.underWay
  // Each of several gateways has a part for itself, because it does not know what is open at the others.
  const share = dayAtomic / BigInt(state.lanes.gateways())
  const lost = book.lossAtomic
  const own = book.riskAtomic - lost + book.ownAtomic
  if (book.riskAtomic + added <= dayAtomic && own + added <= share) return undefined
  if (lost + added <= dayAtomic && book.ownAtomic + added <= share) return Refusals.newUnderWay
  report(state, debtor.merchant, book, dayAtomic)
  return Refusals.lossesSpent
}

/** What a payer has lost within an hour. */
function latelyLost({ now }: State, { losses }: Account): bigint {
  const since = now() - hourMs
  let lately = 0n
  for (const { atomic, at } of losses) if (at > since) lately += atomic
  return lately
}

/** Logs that a budget is spent, once in a while. */
function report({ now, log }: State, merchant: string, book: Book, dayAtomic: bigint): void {
  const at = now()
  if (book.spentLoggedAt !== undefined && Math.abs(at - book.spentLoggedAt) < quietMs) return
  book.spentLoggedAt = at
  log('losses-spent', { merchant, lostAtomic: book.lossAtomic, limitAtomic: dayAtomic })
}

/** What a payer has open and has lost beyond what it has paid. */
function shortOf(account: Account, openAtomic: bigint): bigint {
  return openAtomic + account.lostAtomic - paidOf(account)
}

/** The risk with a payer: what is open and was lost lately (by default within a day), at most what it is short of. */
function riskOf(account: Account, openAtomic: bigint, lately = account.dayAtomic): bigint {
  const short = shortOf(account, openAtomic)
  return short <= 0n ? 0n : Amount.least(openAtomic + lately, short)
}

function update(account: Account): void {
  const { book, openAtomic } = account
  const riskAtomic = riskOf(account, openAtomic)
  book.riskAtomic += riskAtomic - account.riskAtomic
  account.riskAtomic = riskAtomic
  const lossAtomic = riskOf(account, 0n)
  book.lossAtomic += lossAtomic - account.lossAtomic
  account.lossAtomic = lossAtomic
}

function addLoss(state: State, loss: Loss, isOwn: boolean): void {
  const { id, atomic } = loss
  if (state.losses.has(id)) return
  const account = accountOf(state, loss)
  state.losses.set(id, { loss, account, isOwn })
  account.losses.add(loss)
  account.dayAtomic += atomic
  account.lostAtomic += atomic
  if (isOwn) account.book.ownAtomic += atomic
  update(account)
}

/** Takes out a loss that no longer counts for the day. It still counts against what its payer paid. */
function drop(state: State, { loss, account, isOwn }: Counted): void {
  state.losses.delete(loss.id)
  account.losses.delete(loss)
  account.dayAtomic -= loss.atomic
  if (isOwn) account.book.ownAtomic -= loss.atomic
  update(account)
}

function expire(state: State): void {
  const since = state.now() - dayMs
  for (const counted of state.losses.values()) {
    if (counted.loss.at > since) return
    drop(state, counted)
  }
}

function accountOf({ books }: State, { merchant, payer }: BuyerOf): Account {
  const book = books.get(merchant) ?? createBook()
  books.set(merchant, book)
  const known = book.accounts.get(payer)
  if (known) return known
  forget(book)
  const account = { ...createAccount(), book }
  book.accounts.set(payer, account)
  return account
}

/** Makes room for another account. What has risk is kept; the rest can be read again. */
function forget({ accounts }: Book): void {
  if (accounts.size < accountsMax) return
  for (const [payer, { openAtomic, losses }] of accounts)
    if (openAtomic === 0n && losses.size === 0) accounts.delete(payer)
}

function paidOf({ paid, signedAtomic }: Account): bigint {
  let sum = signedAtomic
  for (const { atomic } of paid.values()) sum += atomic
  return sum
}
