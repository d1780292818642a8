/** How the accounts of a network are divided among the gateways that live. */

export type Account = {
  /** Id of its gateway. */
  holder: string | null
  /** Whether it can pay for gas and sell, as far as this gateway knows. */
  isAble: boolean
  /** Whether it was free for so long that any gateway must take it: they may know different things. */
  isLeft: boolean
}

export type Shares<A> = {
  /** Whether this gateway takes an account that is free. */
  takes(account: A): boolean
  /** The accounts of which this gateway gives one; none when it keeps all. */
  excess(): readonly A[]
}

/**
 * Each gateway has a fair part of the accounts that can send, and of all. Without the first, a gateway
 * whose accounts have no gas would sell nothing while another one has several that can send. A gateway
 * gives only what is above its part, so it does not take again what it has given.
 */
export function sharesOf<A extends Account>(
  accounts: readonly A[],
  { others, isOwn }: { others: readonly string[]; isOwn: (account: A) => boolean },
): Shares<A> {
  const gateways = others.length + 1
  const able = accounts.filter(({ isAble }) => isAble)
  const least = Math.floor(able.length / gateways)
  const most = Math.ceil(able.length / gateways)
  const mostOfAll = Math.ceil(accounts.length / gateways)
  // Such a gateway gets an account before any other gateway gets a second one.
  const isOtherShort = others.some(
    (id) => able.filter(({ holder }) => holder === id).length < least,
  )
  const isSomeFree = able.some((account) => account.holder === null && !isOwn(account))
  return {
    takes({ isAble, isLeft }) {
      const isRoom = accounts.filter(isOwn).length < mostOfAll
      if (!isAble || isLeft) return isRoom
      const own = able.filter(isOwn).length
      return own < least || (own < most && !isOtherShort)
    },
    excess() {
      const own = accounts.filter(isOwn)
      const ownAble = able.filter(isOwn)
      const isNeeded = ownAble.length > least && isOtherShort && !isSomeFree
      if (isNeeded || ownAble.length > most) return ownAble
      return own.length > mostOfAll ? own.filter(({ isAble }) => !isAble) : []
    },
  }
}
