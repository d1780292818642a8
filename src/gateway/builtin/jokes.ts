/** Our own jokes, under CC0: buyers may tell them. */
const jokes: readonly string[] = [
  'My cat is on a seafood diet. She sees food and screams until it is hers.',
  'Why did the cat sit on the router? It wanted to be where all the packets arrive.',
  'I asked my cat for a second opinion. It pushed the first one off the table.',
  'A cat walks into a bar, walks out, walks in, and waits for somebody to hold the door.',
  'What is a cat that repairs pipes? A purrplumber. It only turns up when the can opener does.',
  'My cat learned to code. Every function returns to the warm laptop.',
  'Why are cats bad at poker? They can never resist the string bet.',
  'The vet says the cat is overweight. The cat says the vet is out of treats.',
  'How many cats change a light bulb? None: they see in the dark and like watching you fall.',
  'I bought my cat a bed. It sleeps in the box, on the receipt.',
  'Why did the cat reject the pull request? It only accepts pulls that end with a feather.',
  'My cat has three moods: hungry, hungrier, and four in the morning.',
  'What does a cat call a fish tank? Television with dinner included.',
  'The cat read our contract and found the clause. It has used it on the sofa.',
  'Why do cats like databases? All those tables, and so much on them to knock down.',
  'My cat meditates nine hours a day. Enlightenment comes at the sound of a tuna can.',
  'What is the difference between a cat and a comma? One ends a pause, the other paws the end.',
  'I told my cat a joke. It laughed on the inside, where it keeps everything else.',
  'Why did the kitten join the orchestra? It wanted to be first viola, then first to scratch it.',
  'A cat has nine lives and an alarm clock for every one of yours.',
  'My cat is very independent. It lets me open every single door independently.',
  'What did the cat say to the printer? Nothing. It waited for the paper to move first.',
  'Why was the cat promoted? It landed on its feet after every reorganisation.',
  'The dog has an owner. The cat has staff, a budget and a complaints desk.',
  'How does a cat end an argument? It turns round slowly and shows you the summary.',
  'My cat brought me a mouse. It was wireless, and so is the keyboard now.',
  'Why do cats never pay in cash? They prefer to leave it on the scratch pad.',
  'I timed it: my cat can hear cheese being thought about from two floors away.',
  'What is a cat in the sun called? Fully charged.',
  'The cat stared at the wall for an hour. In the end the wall apologised.',
  'Why did the cat fail geography? It was sure that it is the centre of the world.',
  'My cat wrote a memoir: chapter one, breakfast; chapter two, was there no breakfast?',
  'What do you call a pile of kittens? A meowntain. Nobody has ever climbed down from one.',
  'The cat and I have an agreement. I do not know what it says, but I keep breaking it.',
  'Why are cats such good testers? Given an edge, they find out what falls off it.',
  'I tried to walk my cat. We went eleven metres and visited nine bushes.',
  'What does a cat want for its birthday? The paper. Keep the present.',
  'My cat is a minimalist. It is removing everything from the shelf, one thing at a time.',
  'Why did the cat cross the road? To be let back across it straight away.',
  'Schroedinger had a cat and did not. His cat had the same doubts about dinner.',
]

/**
 * One joke: the one of `id` (1 to `total`) if the query names one. Otherwise another joke every
 * millisecond. `now` is unix ms.
 */
export function joke(
  query: URLSearchParams,
  now: number,
): { id: number; joke: string; total: number; license: string } {
  const asked = Number(query.get('id'))
  const isKnown = Number.isInteger(asked) && asked >= 1 && asked <= jokes.length
  // Neighbouring milliseconds are not neighbouring jokes: 17 and 40 have no common factor.
  const index = isKnown ? asked - 1 : (Math.trunc(now) * 17) % jokes.length
  return { id: index + 1, joke: jokes[index] ?? '', total: jokes.length, license: 'CC0-1.0' }
}
