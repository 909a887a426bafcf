// Only for editors and `tsc --checkJs`: the page uses the parser and its tokens, both untyped.
declare const MarkdownIt: any;
export default MarkdownIt;
