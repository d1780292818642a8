import type { Peer } from '../http/peer'
import type { Presented } from '../paywall/extract'
import type { Item } from '../paywall/Item'
import type { Envelope } from '../paywall/rest'
import type * as Route from './Route'

/** A request for something that is sold, and what it was found to ask for. */
export type IncomingRequest = {
  request: Request
  match: Route.Match
  item: Item
  path: string
  /** '' or with its `?`. */
  search: string
  presented: Presented
  peer: Peer
  requestId: string
  /** Of a caller that puts the answer into a message. */
  envelope: Envelope | undefined
  /** Whether the connection is held, and by a stream beyond the answer. */
  held?: 'until-answer' | 'until-end'
}
