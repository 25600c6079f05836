"""One way to ask: a question is one thing for the command line, a recipe, a figure and a call of the library.

question    what a question is: its options, columns, and the function that makes its rows
table       all questions, and what a report may show of their results
asking      ask one question about one model, or about many
making      a result while it is made: what is said about it, and its finished parts, which are kept
frames      rows as tables, with the types of their columns
rows        the columns that tell rows about layers and heads apart
spread      quantiles of a column over layers and heads, and their names
conditions  conditions on a table: parsed, and evaluated for each model
checks      what conditions may say of the table of any question
"""
