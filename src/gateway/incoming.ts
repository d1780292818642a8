import type { Peer } from '../http/client'
import type { Envelope } from '../paywall/answer/remainder'
import type { Presented } from '../paywall/extract'
import type { Item } from '../paywall/offer/Item'
import type * as Route from './Route'
import type { Prepared } from './upstream/upstream'

/** A request for something that is sold, and what it selects. */
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
  /** Set by a caller that puts the answer into a message. */
  envelope: Envelope | undefined
  /** Whether the idle timeout is suspended, and by a stream until the stream ends. */
  held?: 'until-answer' | 'until-end'
  /** The request to the upstream, where it was made before its payment was decided. */
  prepared?: Prepared | undefined
}
